"""Greetings are accepted only from the service's own engines, of the right life and shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sluice_runtime.handover.framing import FramingError
from sluice_runtime.handover.hello import (
    GreetingError,
    SeenNonces,
    make_hello,
    make_welcome,
    memory_of,
    read_hello,
    refusal_of,
)
from sluice_runtime.handover.messages import HANDOVER_VERSION, Hello, Refused

from tests.runtime.handover.conversing import DECODE, MEMORY, NOW, PREFILL, PRINT

HELLO = make_hello(DECODE, PREFILL.epoch, NOW, "nonce")
WELCOME = make_welcome(PREFILL, HELLO)


def refused(hello: Hello, now_unix: float = NOW) -> Refused:
    refusal = refusal_of(PREFILL, hello, now_unix)
    assert refusal is not None
    return refusal


def test_a_greeting_of_our_own_is_accepted_and_tells_where_the_pages_are() -> None:
    payload = msgspec.msgpack.encode(HELLO)
    assert read_hello(payload) == HELLO
    assert refusal_of(PREFILL, HELLO, NOW + 60) is None
    assert memory_of(DECODE, HELLO, WELCOME) == MEMORY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", HANDOVER_VERSION + 1),
        ("epoch", "decode-2"),
        ("name", "x"),
        ("prefill_epoch", "prefill-2"),
        ("fingerprint", {}),
        ("unix_seconds", NOW + 1),
        ("nonce", "other"),
        ("signature", "é"),
    ],
)
def test_every_field_of_a_hello_is_signed(field: str, value: Any) -> None:
    assert refused(msgspec.structs.replace(HELLO, **{field: value})).reason == "NotSigned"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "prefill-2"),
        ("session", "10.0.0.3:15000"),
        ("backend", "mooncake"),
        ("pool_address", 0),
        ("page_bytes", 8192),
        ("pages", 65),
        ("parts", 2),
        ("signature", ""),
    ],
)
def test_every_field_of_a_welcome_is_signed(field: str, value: Any) -> None:
    welcome = msgspec.structs.replace(WELCOME, **{field: value})
    with pytest.raises(GreetingError, match="not signed with this service's key"):
        memory_of(DECODE, HELLO, welcome)


def test_a_welcome_answers_one_hello_only() -> None:
    with pytest.raises(GreetingError, match="not signed"):
        memory_of(DECODE, make_hello(DECODE, PREFILL.epoch, NOW, "nonce 2"), WELCOME)


def test_while_the_key_is_rotated_engines_that_sign_with_either_know_each_other() -> None:
    former, new = b"k" * 32, b"n" * 32
    prefill = replace(PREFILL, keys=lambda: (new, former))
    decode = replace(DECODE, keys=lambda: (former, new))
    hello = make_hello(decode, PREFILL.epoch, NOW, "nonce")
    assert refusal_of(prefill, hello, NOW) is None
    assert memory_of(decode, hello, make_welcome(prefill, hello)) == MEMORY
    stranger = make_hello(replace(DECODE, keys=lambda: (new,)), PREFILL.epoch, NOW, "nonce")
    assert refused(stranger).reason == "NotSigned"


@pytest.mark.parametrize("later", [61.0, -61.0])
def test_a_greeting_of_another_time_is_refused(later: float) -> None:
    refusal = refused(HELLO, NOW + later)
    assert (refusal.reason, refusal.error) == (
        "OutOfDate",
        f"the greeting is {later:.0f} s old by this engine's clock; "
        "allowed: at most 60 s, either way",
    )


def test_a_greeting_of_no_time_at_all_is_refused() -> None:
    hello = make_hello(DECODE, PREFILL.epoch, float("nan"), "nonce")
    assert refused(hello).reason == "OutOfDate"


def test_another_life_of_the_prefill_engine_is_refused() -> None:
    refusal = refused(make_hello(DECODE, "prefill-0", NOW, "nonce"))
    assert refusal.reason == "OtherEpoch"
    assert refusal.error == "epoch prefill-0 is meant; this engine's is prefill-1"


def test_fingerprints_that_differ_are_refused_with_both_values() -> None:
    other = PRINT.model_copy(update={"page_size_tokens": 32, "kv_dtype": "float32"})
    hello = make_hello(replace(DECODE, fingerprint=other), PREFILL.epoch, NOW, "nonce")
    assert refused(hello).reason == "FingerprintsDiffer"
    assert refused(hello).error.endswith(
        "differ: pageSizeTokens: 16 and 32; kvDtype: bfloat16 and float32"
    )


def test_an_engine_of_another_number_of_ranks_is_told_the_parts_of_a_page() -> None:
    wider = PRINT.model_copy(update={"tensor_parallel_size": 4})
    memory = replace(MEMORY, parts=4)
    prefill = replace(PREFILL, fingerprint=wider, memory=memory)
    assert refusal_of(prefill, HELLO, NOW) is None
    assert memory_of(DECODE, HELLO, make_welcome(prefill, HELLO)) == memory


def test_another_version_is_told_so_whatever_else_it_says() -> None:
    payload = msgspec.msgpack.encode({"type": "Hello", "version": 99, "new": [1]})
    answer = read_hello(payload)
    assert isinstance(answer, Refused)
    assert answer.reason == "OtherVersion"
    assert (
        answer.error == f"version of the hand-over: 99; this prefill engine has {HANDOVER_VERSION}"
    )


def test_a_hello_of_this_version_has_nothing_else() -> None:
    payload = msgspec.msgpack.encode(msgspec.to_builtins(HELLO) | {"new": 1})
    with pytest.raises(FramingError, match="new"):
        read_hello(payload)


@pytest.mark.parametrize(
    ("prefill", "error"),
    [
        (replace(PREFILL, epoch="prefill-2"), "epoch prefill-1 is meant; it answers as prefill-2"),
        (replace(PREFILL, backend="mooncake"), "transfer backend: mooncake; this engine's is tcp"),
        (
            replace(PREFILL, memory=replace(MEMORY, page_bytes=8192)),
            "bytes of a page: 8192; this engine's have 4096",
        ),
    ],
)
def test_pages_that_are_not_ours_are_not_read(prefill: Any, error: str) -> None:
    with pytest.raises(GreetingError, match=error):
        memory_of(DECODE, HELLO, make_welcome(prefill, HELLO))


def test_a_nonce_is_good_once_for_as_long_as_its_greeting_is_valid() -> None:
    seen = SeenNonces()
    assert seen.add("a", NOW)
    assert not seen.add("a", NOW + 119)
    assert seen.add("b", NOW + 119)
    assert seen.add("a", NOW + 121)


def test_keys_are_not_shown() -> None:
    assert "kkk" not in repr(PREFILL) + repr(DECODE)
