"""Fake engines that take private calls and break off where they are told to.

Each of an answer's choices is a fixed list of tokens. The text of every second one is held back
until the next, as that of half a character is; so what was sent and what was drawn differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from msgspec.structs import replace
from sluice_contract.http_heads import REQUEST_ID_HEADER
from sluice_contract.wire.handover import refuse_other_body
from sluice_contract.wire.private_calls import (
    MORE_LINE,
    PRIVATE_HEADER,
    AnswerStart,
    CallHead,
    ChoiceSoFar,
    EventComment,
    Resume,
    Score,
    comment_line,
    split_body,
    verified_call,
)

from tests.router import fakes

KEY = b"k" * 32
TEXTS = (("a", "b", "c", "d", "e"), ("V", "W", "X", "Y"))
"""Of the tokens of each choice."""
START = AnswerStart("cmpl-7", 17, "ab12", [9, 9], prompt_tokens=3, answer_identity="m1")
USAGE_FOLLOWS = "follows"
"""Of an event that belongs to the one with the usage."""
DRAINING = b'data: {"error":{"message":"draining","type":"server_error","code":"unavailable"}}\n\n'
ENGINE_DIED = b'data: {"error":{"message":"died","type":"server_error","code":"engine_died"}}\n\n'
SERVES = fakes.load_report(private_calls=True, answer_identity=START.answer_identity)


def ids_of(index: int) -> list[int]:
    """The token ids of a choice."""
    return [1000 * (index + 1) + place for place in range(len(TEXTS[index]))]


def shown(index: int, count: int) -> str:
    """The text that is sent once so many tokens of a choice were drawn."""
    whole = count == len(TEXTS[index])
    return "".join(TEXTS[index][: count if whole else count - count % 2])


def event(comment: EventComment, data: bytes = b"") -> bytes:
    return comment_line(comment) + (b"data: " + data + b"\n" if data else b"") + b"\n"


def events_from(head: CallHead) -> Iterator[bytes]:
    """A stream from where a resume goes on, or from its beginning."""
    choices = so_far(head.resume)
    start: AnswerStart | None = START
    for place, index in sorted(
        (place, number)
        for number, choice in enumerate(choices)
        for place in range(len(choice.ids), len(TEXTS[number]))
    ):
        text = shown(index, place + 1).removeprefix(shown(index, place))
        finished = place + 1 == len(TEXTS[index])
        told = told_of(index, place, start, [index] if finished else [])
        start = None
        delta = {"index": index, "text": text, "finish_reason": "stop" if finished else None}
        yield event(told, chunk(choices=[delta]) if text else b"")
    usage = {"prompt_tokens": 3, "completion_tokens": sum(map(len, TEXTS))}
    yield MORE_LINE + event(EventComment(start), chunk(choices=[], usage=USAGE_FOLLOWS))
    yield event(EventComment(last=True), chunk(choices=[], usage=usage))
    yield fakes.DONE


def told_of(index: int, place: int, start: AnswerStart | None, finished: list[int]) -> EventComment:
    """What is told of one token."""
    score = Score(-0.5 - place, 1, [(7, -0.125)])
    cached = [(index, 2)] if place == 0 else []
    ids = [(index, [ids_of(index)[place]])]
    return EventComment(start, ids, [(index, [score])], cached, finished)


def whole_from(head: CallHead) -> Iterator[bytes]:
    """The events of an answer that is not streamed."""
    start: AnswerStart | None = START
    for index, choice in enumerate(so_far(head.resume)):
        for place in range(len(choice.ids), len(TEXTS[index])):
            yield event(told_of(index, place, start, []))
            start = None
    answer = chunk(choices=["".join(texts) for texts in TEXTS])
    yield event(EventComment(start, last=True), answer)
    yield fakes.DONE


def so_far(resume: Resume | None) -> list[ChoiceSoFar]:
    """The choices that were begun, checked."""
    if resume is None:
        return [ChoiceSoFar() for _ in TEXTS]
    assert resume.start == START
    for index, choice in enumerate(resume.choices):
        count = len(choice.ids)
        assert choice.ids == ids_of(index)[:count]
        assert [score.logprob for score in choice.scores] == [-0.5 - n for n in range(count)]
        assert choice.cached == (2 if count else 0)
        assert not choice.finished or count == len(TEXTS[index])
    return resume.choices


def chunk(**fields: Any) -> bytes:
    return json.dumps({"id": START.id, **fields}).encode()


@dataclass
class Cut:
    """Where a stream breaks off: after so many bytes or events, in that way."""

    after: int
    ends_with: bytes | None = None
    """An event, or None: the connection breaks."""
    events: bool = False
    """Whether events are counted."""


@dataclass
class Script:
    """What the engines do with the calls of one request, in turn; more calls are answered whole."""

    cuts: list[Cut] = field(default_factory=list)
    heads: list[CallHead] = field(default_factory=list)
    engines: list[fakes.FakeEngine] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What an engine did not expect."""

    async def behave(self, engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        """A behaviour of fake engines."""
        self.engines.append(engine)
        try:
            head, client_body = opened(request, await request.read())
            self.heads.append(head)
            streams = json.loads(client_body)["stream"]
            if head.resume is not None:
                assert head.resume.start.answer_identity == engine.load.answer_identity
                head = replace(head, resume=replace(head.resume, start=START))
            ours = b'"answerIdentity":"%s"' % (engine.load.answer_identity or "").encode()
            events = [
                one.replace(b'"answerIdentity":"m1"', ours)
                for one in (events_from(head) if streams else whole_from(head))
            ]
        except Exception as error:
            self.wrong.append(repr(error))
            raise
        cut = self.cuts.pop(0) if self.cuts else None
        return await answer(request, events, cut)


def opened(request: web.Request, body: bytes) -> tuple[CallHead, bytes]:
    """Head and body of the client, if the router signed them."""
    value, id_ = request.headers[PRIVATE_HEADER], request.headers[REQUEST_ID_HEADER]
    call = verified_call((KEY,), value, id_, request.path, time.time())
    refuse_other_body({PRIVATE_HEADER: call.body_sha256 or ""}, body)
    return split_body(body)


async def answer(
    request: web.Request, events: Sequence[bytes], cut: Cut | None
) -> web.StreamResponse:
    """Send these events, or the bytes before the cut."""
    response = await fakes.start_stream(request)
    if cut is None:
        for one in events:
            await response.write(one)
        return response
    sent = b"".join(events[: cut.after]) if cut.events else b"".join(events)[: cut.after]
    await response.write(sent + (cut.ends_with or b""))
    if cut.ends_with is None:
        assert request.transport is not None
        request.transport.close()  # what was written is sent
    return response
