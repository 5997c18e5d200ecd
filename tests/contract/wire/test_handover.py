"""The signed header by which a router names a prefill engine, and the keys that sign it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest
from sluice_contract.wire.handover import (
    HEADER_SECONDS,
    LOOK_SECONDS,
    PREFILL_HEADER,
    Bound,
    InvalidSignatureError,
    KeyFiles,
    PrefillRef,
    refuse_other_body,
    signature,
    signed_header,
    verified_header,
)

KEY, OTHER_KEY = b"k" * 32, b"x" * 32
PATH, BODY = "/v1/completions", b"{}"
BOUND = Bound(PATH, hashlib.sha256(BODY).hexdigest())
PREFILL = PrefillRef(host="10.0.0.7", port=8998, epoch="abc", name="chat-prefill-0")


def test_what_was_signed_is_read() -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0, BOUND)
    assert verified_header((KEY,), value, "req-1", PATH, 100.0 + HEADER_SECONDS).content == PREFILL


@pytest.mark.parametrize(
    ("key", "request_id", "seconds", "says"),
    [
        (OTHER_KEY, "req-1", 0.0, "not signed"),
        (KEY, "req-2", 0.0, "another request"),
        (KEY, "req-1", HEADER_SECONDS + 1, "more than 60 s ago"),
        (KEY, "req-1", -HEADER_SECONDS - 1, "more than 60 s ago"),
    ],
)
def test_others_are_refused(key: bytes, request_id: str, seconds: float, says: str) -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0, BOUND)
    with pytest.raises(InvalidSignatureError, match=says):
        verified_header((key,), value, request_id, PATH, 100.0 + seconds)


@pytest.mark.parametrize("value", ["", ".", "a.b", "e30=.00", "\u00e9.00"])
def test_garbage_is_refused(value: str) -> None:
    with pytest.raises(InvalidSignatureError, match="not signed"):
        verified_header((KEY,), value, "req-1", PATH, 0.0)


def test_a_changed_byte_is_refused() -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0, BOUND)
    for index in range(len(value)):
        changed = value[:index] + ("A" if value[index] != "A" else "B") + value[index + 1 :]
        with pytest.raises(InvalidSignatureError):
            verified_header((KEY,), changed, "req-1", PATH, 100.0)


def test_a_bound_header_is_good_for_one_path_and_one_body() -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0, BOUND)
    prefill, digest = verified_header((KEY,), value, "req-1", PATH, 100.0)
    assert prefill == PREFILL
    refuse_other_body({PREFILL_HEADER: digest}, BODY)
    with pytest.raises(InvalidSignatureError, match="X-Sluice-Prefill: signed for another body"):
        refuse_other_body({PREFILL_HEADER: digest}, BODY + b" ")
    with pytest.raises(InvalidSignatureError, match="X-Sluice-Prefill: signed for another path"):
        verified_header((KEY,), value, "req-1", "/generate", 100.0)


@pytest.mark.parametrize("left_out", ["path", "bodySha256"])
def test_a_header_for_any_path_or_body_is_refused(left_out: str) -> None:
    encoded, _, _ = signed_header(KEY, PREFILL, "req-1", 100.0, BOUND).partition(".")
    claims = json.loads(base64.urlsafe_b64decode(encoded))
    del claims[left_out]
    unbound = base64.urlsafe_b64encode(json.dumps(claims).encode())
    mac = signature(KEY, b"sluice prefill header 1\0" + unbound)
    with pytest.raises(InvalidSignatureError, match=r"another path|not signed for a body"):
        verified_header((KEY,), f"{unbound.decode()}.{mac}", "req-1", PATH, 100.0)


def test_each_key_verifies() -> None:
    value = signed_header(OTHER_KEY, PREFILL, "req-1", 100.0, BOUND)
    assert verified_header((KEY, OTHER_KEY), value, "req-1", PATH, 100.0).content == PREFILL


class Mounted:
    """A Secret as a kubelet mounts it: all of its files change at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._states = 0
        for name in ("key", "second-key"):
            (folder / name).symlink_to(Path("..data") / name)

    @property
    def key_file(self) -> Path:
        return self._folder / "key"

    def hold(self, **keys: bytes) -> None:
        self._states += 1
        state = self._folder / f"..{self._states}"
        state.mkdir()
        for name, key in keys.items():
            (state / name.replace("_", "-")).write_bytes(key)
        (self._folder / "..new").symlink_to(state.name)
        os.replace(self._folder / "..new", self._folder / "..data")


def test_keys_are_read_again_when_they_change(tmp_path: Path) -> None:
    now = 0.0
    mounted = Mounted(tmp_path)
    mounted.hold(key=KEY)
    files = KeyFiles(mounted.key_file, lambda: now)
    mounted.hold(key=KEY, second_key=OTHER_KEY)
    assert files.current() == (KEY,), "it has just looked"
    now += LOOK_SECONDS
    assert files.current() == (KEY, OTHER_KEY)
    for held in ({"key": OTHER_KEY, "second_key": KEY}, {"key": OTHER_KEY}):
        mounted.hold(**held)
        now += LOOK_SECONDS
        assert files.current() == tuple(held.values())


@pytest.mark.parametrize("held", [{}, {"key": b"short"}, {"key": KEY, "second_key": b""}])
def test_keys_that_cannot_be_read_stay(
    tmp_path: Path, held: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    mounted = Mounted(tmp_path)
    mounted.hold(key=OTHER_KEY)
    files = KeyFiles(mounted.key_file, lambda: now)
    mounted.hold(**held)
    now += LOOK_SECONDS
    assert files.current() == (OTHER_KEY,)
    assert "keys stay as they were" in caplog.text
    mounted.hold(key=KEY)
    now += LOOK_SECONDS
    assert files.current() == (KEY,)
