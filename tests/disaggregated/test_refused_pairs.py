"""Engines that must not share pages, and whoever has no key: each is refused by name."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
import pytest
from sluice_contract.wire.handover import PREFILL_HEADER
from sluice_runtime.handover.decode_client import DecodeClient
from sluice_runtime.handover.hello import DecodeIdentity
from sluice_runtime.handover.messages import Bootstrap, Cancel, Failed, Finished
from sluice_runtime.handover.ports import DecodeEvent, FromPrefill, RoomLost
from sluice_runtime.handover.prefill_link import ClientSettings
from sluice_runtime.handover.rooms import prompt_hash
from sluice_runtime.wire.messages import PrefillEngine

from tests.disaggregated.asking import task, text
from tests.disaggregated.direct import ask_pair, error_of, life_of
from tests.disaggregated.engines import KEY, EngineProcess, RouterProcess
from tests.disaggregated.service import holds_nothing
from tests.runtime.harness import generate
from tests.runtime.launch.processes import HANG_SECONDS, until

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.xdist_group("refused-pairs")]

ANOTHER_KEY = b"another key, of the same length."
PAGE_BYTES = 16 * 4096
REQUEST = task("copy", 100, 1)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineProcess]]:
    """A prefill engine, and decode engines that it has nothing to do with."""
    folder = tmp_path_factory.mktemp("engines")
    kv = {"kvTransfer": {"backend": "TCP"}, "chunkSize": 64}
    made = {
        "prefill": EngineProcess(folder / "prefill", "prefill", **kv),
        "large-pages": EngineProcess(folder / "large-pages", "decode", pageSize=32, **kv),
        "stranger": EngineProcess(folder / "stranger", "decode", key=ANOTHER_KEY, **kv),
    }
    with ExitStack() as stack:
        for engine in made.values():
            engine.start()
            stack.callback(engine.stop)
        for engine in made.values():
            engine.wait()
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(engines: dict[str, EngineProcess]) -> Iterator[None]:
    yield
    until(lambda: all(holds_nothing(engine.load()) for engine in engines.values()))


def test_pages_of_another_size_are_refused_with_both_sizes(
    engines: dict[str, EngineProcess],
) -> None:
    ref = life_of(engines["prefill"])
    status, code, message = error_of(ask_pair(engines["large-pages"], ref, REQUEST))
    assert (status, code) == (503, "prefill_unavailable")
    assert "FingerprintsDiffer" in message
    assert "pageSizeTokens: 16 and 32" in message


def test_a_router_makes_no_pair_of_them(engines: dict[str, EngineProcess], tmp_path: Any) -> None:
    router = RouterProcess(tmp_path, [engines["prefill"]], [engines["large-pages"]])
    router.start()
    try:
        until(lambda: all("report" in row for row in router.engines().values()))
        url = router.url + REQUEST.path
        answer = httpx.post(url, json=REQUEST.body, timeout=HANG_SECONDS, verify=False)
    finally:
        router.stop()
    status, code, message = error_of(answer)
    assert (status, code) == (503, "no_engine")
    assert "pageSizeTokens: 16 and 32" in message


def test_an_engine_with_another_key_gets_nothing(engines: dict[str, EngineProcess]) -> None:
    ref, stranger = life_of(engines["prefill"]), engines["stranger"]
    status, code, message = error_of(ask_pair(stranger, ref, REQUEST, key=ANOTHER_KEY))
    assert (status, code) == (503, "prefill_unavailable")
    assert "NotSigned" in message
    assert ask_pair(stranger, ref, REQUEST).status_code == 403, "signed with our key"


def test_a_client_cannot_name_an_engine(engines: dict[str, EngineProcess]) -> None:
    url = engines["large-pages"].url + REQUEST.path
    answer = httpx.post(url, json=REQUEST.body, headers={PREFILL_HEADER: "made up"}, verify=False)
    assert (answer.status_code, error_of(answer)[1]) == (403, "invalid_signature")


class Decoder:
    """A decode engine's connection, with no engine behind it."""

    def __init__(self, prefill: EngineProcess) -> None:
        ref, report = life_of(prefill), prefill.load()
        assert report.kv_fingerprint is not None
        us = DecodeIdentity(
            lambda: (KEY,), "epoch", "d-0", report.kv_fingerprint, "TCP", PAGE_BYTES
        )
        self.engine = PrefillEngine(ref.host, ref.port, ref.epoch, ref.name)
        self._woken = threading.Event()
        self._came: queue.SimpleQueue[DecodeEvent] = queue.SimpleQueue()
        self.client = DecodeClient(
            us, self._woken.set, ClientSettings(), time.time, lambda: secrets.token_hex(16)
        )

    def open(self, room: int, prompt: list[int], **changes: Any) -> None:
        asked = Bootstrap(room, generate("r", prompt, 4), 0, prompt_hash(prompt), 30.0)
        self.client.open(self.engine, msgspec.structs.replace(asked, **changes))

    def next(self) -> DecodeEvent:
        while self._came.empty():
            assert self._woken.wait(HANG_SECONDS)
            self._woken.clear()
            for event in self.client.events():
                self._came.put(event)
        return self._came.get()


@pytest.fixture
def decoders(engines: dict[str, EngineProcess]) -> Iterator[list[Decoder]]:
    made = [Decoder(engines["prefill"]) for _ in range(2)]
    yield made
    for decoder in made:
        decoder.client.shut_down()


def said(event: DecodeEvent) -> Any:
    assert isinstance(event, FromPrefill), event
    return event.message


def test_a_room_is_opened_once_whoever_asks(decoders: list[Decoder]) -> None:
    """The first one goes on."""
    first, second = decoders
    prompt = list(text(3000, 4).body["prompt"].encode())
    first.open(7, prompt)
    assert said(first.next()).room == 7
    second.open(7, prompt)
    assert said(second.next()) == Failed(7, "duplicate room", "prefill_failed")
    while not isinstance(message := said(first.next()), Finished):
        assert message.room == 7
    first.client.send(Cancel(7, "the test ends"))


def test_a_prompt_with_another_hash_is_not_computed(decoders: list[Decoder]) -> None:
    decoders[0].open(8, [1, 2, 3], prompt_hash=prompt_hash([3, 2, 1]))
    failed = said(decoders[0].next())
    assert failed == Failed(8, "the prompt is not the one whose hash was sent", "prefill_failed")


def test_rooms_end_with_their_connection(
    decoders: list[Decoder], engines: dict[str, EngineProcess]
) -> None:
    prompt = list(text(3000, 5).body["prompt"].encode())
    decoders[0].open(9, prompt)
    assert not isinstance(decoders[0].next(), RoomLost)
    until(lambda: not holds_nothing(engines["prefill"].load()))  # its API process is told later
    decoders[0].client.shut_down()
    until(lambda: holds_nothing(engines["prefill"].load()))
