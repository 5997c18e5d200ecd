"""What once answered one client with another's prompt elsewhere, done to two real engines.

The trained model's answer needs every page, so it tells whose pages were read. Each case swaps for
real; the requests must be refused by name, or be answered rightly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import msgspec
import pytest
from sluice_runtime.handover.decode_role import DecodeRole
from sluice_runtime.handover.messages import Bootstrap, Chunk, Finished
from sluice_runtime.handover.ports import FromDecode, PrefillEvent
from sluice_runtime.handover.prefill_role import PrefillRole
from sluice_runtime.handover.prefill_server import PrefillServer
from sluice_runtime.handover.transfer.backend import TransferError
from sluice_runtime.handover.transfer.reader import PageReader
from sluice_runtime.handover.transfer.reads import ReadJob
from sluice_runtime.handover.transfer.registered import memory_at
from sluice_runtime.wire.messages import Abort, Generate

from e2e.model.folder import END_ID, FOLDER
from e2e.model.tasks import make_prompt
from tests.runtime.handover.engines import Answer, RunningEngine, pair, through
from tests.runtime.harness import generate

pytestmark = pytest.mark.process

WAIT_SECONDS = 30.0
LENGTH = 120
SETTINGS: dict[str, Any] = {"model": str(FOLDER), "chunk_size": 4096, "prefix_cache": False}
Answers = dict[str, Answer]


def copy(seed: int) -> Generate:
    """Named after its seed."""
    prompt, _ = make_prompt("copy", LENGTH, seed)
    return generate(str(seed), list(prompt.encode()), LENGTH, stop_token_ids=[END_ID])


def right(seed: int, answer: Answer) -> bool:
    text = bytes(token for token in answer.tokens if token < 256).decode()
    return answer.end.finish_reason == "stop" and text == make_prompt("copy", LENGTH, seed)[1]


def refused(answer: Answer, why: str) -> bool:
    """By name, without a token."""
    end = answer.end
    return not answer.tokens and end.refusal == "prefill_failed" and why in (end.error or "")


@contextmanager
def engines(backend: str = "TCP", **settings: Any) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    with pair(backend, **{**SETTINGS, **settings}) as (prefill, decode):
        yield prefill, decode
        after = decode.answers(through(prefill, [copy(30), copy(31)]))
        assert right(30, after["30"]), "the engines go on"
        assert right(31, after["31"])


class Gate:
    """Holds reads of a decode engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Semaphore(0)
        read = PageReader._read

        def held(reader: PageReader, job: ReadJob) -> TransferError | None:
            self.reached.release()
            assert self.open.wait(WAIT_SECONDS)
            return read(reader, job)

        monkeypatch.setattr(PageReader, "_read", held)

    def wait(self, reads: int) -> None:
        for _ in range(reads):
            assert self.reached.acquire(timeout=WAIT_SECONDS)


class LateRead:
    """The first read happens when so many others are over, and none of them is known to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        due, landed = threading.Event(), threading.Event()
        numbers, read = count(), PageReader._read

        def ordered(reader: PageReader, job: ReadJob) -> TransferError | None:
            number = next(numbers)
            if number == 0:
                self.reached.set()
                assert due.wait(WAIT_SECONDS)
                error = read(reader, job)
                landed.set()
                return error
            assert self.go_on.wait(WAIT_SECONDS)
            error = read(reader, job)
            if number == behind:
                due.set()
                assert landed.wait(WAIT_SECONDS)
            return error

        monkeypatch.setattr(PageReader, "_read", ordered)


class Planned:
    """Says when a decode engine has aborted a request and given out pages since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after_abort = threading.Event()
        aborted, (abort, plan) = threading.Event(), (DecodeRole.abort, DecodeRole.plan)

        def aborting(role: DecodeRole, request_id: str) -> None:
            abort(role, request_id)
            aborted.set()

        def planning(role: DecodeRole, now: float) -> None:
            plan(role, now)
            if aborted.is_set():
                self.after_abort.set()

        monkeypatch.setattr(DecodeRole, "abort", aborting)
        monkeypatch.setattr(DecodeRole, "plan", planning)


def in_thread(call: Callable[[], Answers]) -> Callable[[], Answers]:
    """Calls at once; returns what waits for the result."""
    result: list[Answers] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()

    def wait() -> Answers:
        thread.join(WAIT_SECONDS)
        return result[0]

    return wait


@pytest.mark.parametrize("backend", ["TCP", "Mooncake"])
def test_pages_of_two_requests_exchanged_in_the_pool(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when pages are given away while they are still to be read. By Mooncake, copies are read,
    which were made before."""
    announced: list[tuple[int, ...]] = []
    computed = PrefillRole.computed

    def noted(role: PrefillRole, chunks: Any) -> None:
        announced.extend(chunk.page_ids for chunk in chunks)
        computed(role, chunks)

    with engines(backend) as (prefill, decode), monkeypatch.context() as patched:
        gate = Gate(patched)
        patched.setattr(PrefillRole, "computed", noted)
        asked = in_thread(lambda: decode.answers(through(prefill, [copy(0), copy(1)])))
        gate.wait(2)
        for one, other in zip(*announced, strict=True):
            exchange(prefill, one, other)
        gate.open.set()
        answers = asked()
    for seed, answer in ((0, answers["0"]), (1, answers["1"])):
        as_expected = right(seed, answer) if backend == "Mooncake" else refused(answer, "checksum")
        assert as_expected, answer.end


def exchange(engine: RunningEngine, one: int, other: int) -> None:
    pool = engine.engine.pool
    views = [
        memory_at(pool.address + page * pool.page_bytes, pool.page_bytes) for page in (one, other)
    ]
    kept = bytes(views[0])
    views[0][:] = views[1]
    views[1][:] = kept


@pytest.mark.parametrize("kind", [Chunk, Finished])
def test_announcements_of_two_requests_exchanged(
    kind: type[Chunk | Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is whole, with its checksum or its hash; but the other request's."""
    held: list[tuple[int, Any]] = []
    send = PrefillServer.send

    def exchanged(server: PrefillServer, peer: int, message: Any) -> None:
        held.append((peer, message))
        of_kind = [message for _, message in held if isinstance(message, kind)]
        if len(of_kind) < 2:
            return
        rooms = dict(zip(of_kind, reversed([each.room for each in of_kind]), strict=True))
        for to, each in sorted(held, key=lambda sent: not isinstance(sent[1], Chunk)):
            room = rooms.get(each, each.room)
            send(server, to, msgspec.structs.replace(each, room=room))
        monkeypatch.setattr(PrefillServer, "send", send)

    with engines() as (prefill, decode):
        monkeypatch.setattr(PrefillServer, "send", exchanged)
        answers = decode.answers(through(prefill, [copy(0), copy(1)]))
    why = "checksum" if kind is Chunk else "another prompt was computed"
    assert refused(answers["0"], why)
    assert refused(answers["1"], why)


@pytest.mark.parametrize("with_hash", [False, True])
def test_prompts_of_two_requests_exchanged(
    with_hash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = PrefillServer.events
    first: list[FromDecode] = []

    def exchanged(server: PrefillServer) -> list[PrefillEvent]:
        came = events(server)
        asked = [one for one in came if isinstance(one, FromDecode) and _asks(one.message)]
        first.extend(asked)
        if len(first) < 2:
            return [one for one in came if one not in asked]
        monkeypatch.setattr(PrefillServer, "events", events)
        return _exchanged(first, with_hash)

    with engines() as (prefill, decode):
        monkeypatch.setattr(PrefillServer, "events", exchanged)
        answers = decode.answers(through(prefill, [copy(0), copy(1)]))
    why = "another prompt was computed" if with_hash else "not the one whose hash was sent"
    assert refused(answers["0"], why)
    assert refused(answers["1"], why)


def _asks(message: object) -> bool:
    return isinstance(message, Bootstrap)


def _exchanged(asked: list[FromDecode], with_hash: bool) -> list[PrefillEvent]:
    one, other = (event.message for event in asked)
    assert isinstance(one, Bootstrap)
    assert isinstance(other, Bootstrap)
    changed: list[PrefillEvent] = []
    for event, mine, theirs in ((asked[0], one, other), (asked[1], other, one)):
        chosen = theirs.prompt_hash if with_hash else mine.prompt_hash
        swapped = msgspec.structs.replace(mine, request=theirs.request, prompt_hash=chosen)
        changed.append(FromDecode(event.peer, swapped))
    return changed


@pytest.mark.parametrize("backend", ["TCP", "Mooncake"])
def test_what_is_written_after_an_abort_hits_nobody(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts fill the decode engine's pool. One is aborted while its pages are being read, and
    its bytes arrive when the next but one has just been read: that one has other pages."""
    with engines(backend, kv_pool_tokens=512) as (prefill, decode), monkeypatch.context() as patch:
        late, planned = LateRead(patch, behind=2), Planned(patch)
        requests = through(prefill, [copy(seed) for seed in range(4)])
        asked = in_thread(lambda: decode.answers(requests))
        assert late.reached.wait(WAIT_SECONDS)
        decode.link.ask(Abort("0"))
        assert planned.after_abort.wait(WAIT_SECONDS)
        late.go_on.set()
        answers = asked()
        status = decode.engine.scheduler.status()
    assert (answers["0"].end.finish_reason, answers["0"].tokens) == ("abort", [])
    assert [right(seed, answers[str(seed)]) for seed in (1, 2, 3)] == [True] * 3
    assert status.retractions == 0


def test_a_room_used_twice_is_never_the_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the prefill engine says of the first use arrives when the second one is open."""
    numbers = count(8)
    rooms = iter([7, 7])
    monkeypatch.setattr("secrets.randbits", lambda bits: next(rooms, None) or next(numbers))
    send = PrefillServer.send
    late: list[tuple[PrefillServer, int, Any]] = []
    computed = threading.Semaphore(0)

    def delayed(server: PrefillServer, peer: int, message: Any) -> None:
        late.append((server, peer, message))
        if isinstance(message, Finished):
            computed.release()

    with engines() as (prefill, decode):
        with monkeypatch.context() as patched:
            patched.setattr(PrefillServer, "send", delayed)
            asked = in_thread(lambda: decode.answers(through(prefill, [copy(0)])))
            assert computed.acquire(timeout=WAIT_SECONDS)
            decode.link.ask(Abort("0"))
            assert asked()["0"].end.finish_reason == "abort"
            asked = in_thread(lambda: decode.answers(through(prefill, [copy(1)])))
            assert computed.acquire(timeout=WAIT_SECONDS)
        for server, peer, message in late:
            send(server, peer, message)
        answer = asked()["1"]
    assert [message.room for *_, message in late[:4]] == [7] * 4
    assert right(1, answer) or refused(answer, "")
