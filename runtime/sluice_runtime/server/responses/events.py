"""Writes a chat's answer in the form of OpenAI's Responses API: as events of a stream, or as a
whole object.

The n-th item of an answer has one id on every engine, so that another engine can continue the
answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.generation import ResumableChoice
from sluice_runtime.server.response_writers import Envelope, NamedEvents, Usage
from sluice_runtime.server.responses.items import (
    CallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    logprobs_of,
)
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.server.responses.tools import Origin, functions
from sluice_runtime.server.token_text import ScoredToken
from sluice_runtime.server.tools.calls import CallPart

Event = dict[str, Any]

_EVENTS_A_TOKEN: Final = 2
"""Most delta events for one token: one of text or reasoning, and one of a call's arguments. Events
that begin or end an item are counted separately."""


class ResponseWriter:
    """Writes one response; its pieces are passed in order."""

    def __init__(self, request: ResponsesRequest, envelope: Envelope, usage: Usage) -> None:
        self._request = request
        self._envelope = envelope
        self.usage = usage
        self._origins = {
            function["name"]: origin for function, origin in functions(request.tools or ())
        }
        """The tools that functions stand for, by the function's name."""
        self._items: list[OutputItem] = []
        self._scores: list[ScoredToken] = []
        """Scores of tokens whose text is held back."""
        self._begun = False
        self._cut_off = False
        """Whether the answer ended with `max_output_tokens`."""
        self._sequence = 0

    def chunk(self, piece: Piece) -> NamedEvents | None:
        """The events for a piece; None when there is nothing to send."""
        self.usage.add(piece)
        events = [] if self._begun else self._beginning()
        if piece.reasoning:
            events += self._reasoning(piece.reasoning)
        if piece.text or not isinstance(self._current, ReasoningItem):
            self._scores += piece.scores or ()
        for part in piece.text_and_calls:
            events += self._text(part) if isinstance(part, str) else self._call(part)
        self._cut_off = self._cut_off or piece.finish_reason == "length"
        return NamedEvents(tuple(events)) if events else None

    def skip_sent(self, choice: ResumableChoice) -> None:
        """Counts what another engine has sent. It may have sent smaller pieces in more events, so
        sequence numbers continue after the highest that it can have used."""
        for piece in choice.sent:
            self.chunk(piece)
            self._sequence += _EVENTS_A_TOKEN * piece.tokens

    def final_chunk(self) -> NamedEvents:
        """The events that end the response."""
        events = [] if self._begun else self._beginning()
        if not self._items:
            events += self._open(MessageItem(self._item_id("msg")))
        events += self._close("incomplete" if self._cut_off else "completed")
        ended = self._object("incomplete" if self._cut_off else "completed")
        events.append(self._event(f"response.{ended['status']}", response=ended))
        return NamedEvents(tuple(events))

    def failure_chunk(self, message: str) -> NamedEvents:
        """The events that end a failed response."""
        events = self._close("incomplete")
        error = {"code": "server_error", "message": message}
        response = {**self._object("failed"), "error": error}
        return NamedEvents((*events, self._event("response.failed", response=response)))

    def whole_response(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        """The whole response, for requests without streaming."""
        for piece in pieces:
            self.chunk(piece)
        ended: dict[str, Any] = self.final_chunk().events[-1]["response"]
        return ended

    def _beginning(self) -> list[Event]:
        self._begun = True
        response = self._object("in_progress")
        return [
            self._event(f"response.{name}", response=response)
            for name in ("created", "in_progress")
        ]

    def _reasoning(self, text: str) -> list[Event]:
        events: list[Event] = []
        item = self._current
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(self._item_id("rs"))
            events += self._open(item)
        self._scores.clear()
        item.texts.append(text)
        own = {**self._part_of(item), "delta": text}
        return [*events, self._event("response.reasoning_text.delta", **own)]

    def _text(self, text: str) -> list[Event]:
        events: list[Event] = []
        item = self._current
        if not isinstance(item, MessageItem):
            item = MessageItem(self._item_id("msg"))
            events += [*self._close("completed"), *self._open(item)]
        item.texts.append(text)
        item.scores += self._scores
        own = {**self._part_of(item), "delta": text, "logprobs": logprobs_of(self._scores)}
        self._scores.clear()
        return [*events, self._event("response.output_text.delta", **own)]

    def _call(self, part: CallPart) -> list[Event]:
        events: list[Event] = []
        item = self._current
        self._scores.clear()
        if part.call_id is not None:
            origin = self._origins.get(part.name or "") or Origin(part.name or "", None, False)
            prefix = "ctc" if origin.is_custom else "fc"
            item = CallItem(self._item_id(prefix), part, origin)
            events += [*self._close("completed"), *self._open(item)]
        assert isinstance(item, CallItem), "a call's parts come one after the other"
        item.texts.append(part.arguments)
        if part.arguments and not item.origin.is_custom:  # a custom tool's is inside JSON
            own = {**self._place(item), "delta": part.arguments}
            events.append(self._event("response.function_call_arguments.delta", **own))
        return events

    @property
    def _current(self) -> OutputItem | None:
        """The open item; None if all are complete."""
        final_chunk = self._items[-1] if self._items else None
        return (
            final_chunk if final_chunk is not None and final_chunk.status == "in_progress" else None
        )

    def _open(self, item: OutputItem) -> list[Event]:
        self._items.append(item)
        events = [self._item_event("added", item)]
        if not isinstance(item, CallItem):
            own = {**self._part_of(item), "part": item.part()}
            events.append(self._event("response.content_part.added", **own))
        return events

    def _close(self, status: Any) -> list[Event]:
        """Events that end the open item, if there is one."""
        item = self._current
        if item is None:
            return []
        item.status = status
        if isinstance(item, CallItem):
            done = self._call_done(item)
        else:
            part, place = item.part(), self._part_of(item)
            text = {key: part[key] for key in ("text", "logprobs") if key in part}
            done = [
                self._event(f"response.{part['type']}.done", **place, **text),
                self._event("response.content_part.done", **place, part=part),
            ]
        return [*done, self._item_event("done", item)]

    def _call_done(self, item: CallItem) -> list[Event]:
        place = self._place(item)
        if not item.origin.is_custom:
            own = {**place, "name": item.origin.name, **item.content}
            return [self._event("response.function_call_arguments.done", **own)]
        kind, delta = "response.custom_tool_call_input", item.content["input"]
        return [
            self._event(f"{kind}.delta", **place, delta=delta),
            self._event(f"{kind}.done", **place, **item.content),
        ]

    def _item_event(self, what: str, item: OutputItem) -> Event:
        place = {"output_index": len(self._items) - 1}
        return self._event(f"response.output_item.{what}", **place, item=item.to_json())

    def _place(self, item: OutputItem) -> dict[str, Any]:
        return {"item_id": item.item_id, "output_index": len(self._items) - 1}

    def _part_of(self, item: ReasoningItem | MessageItem) -> dict[str, Any]:
        return {**self._place(item), "content_index": 0}

    def _event(self, kind: str, **own: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **own}
        self._sequence += 1
        return event

    def _item_id(self, prefix: str) -> str:
        answer = self._envelope.response_id.partition("_")[2]
        return f"{prefix}_{answer}_{len(self._items)}"

    def _object(self, status: str) -> dict[str, Any]:
        return response_object(
            self._request,
            self._envelope,
            status,
            [item.to_json() for item in self._items],
            None if status == "in_progress" else self.usage,
        )


def response_object(
    request: ResponsesRequest,
    envelope: Envelope,
    status: str,
    output: list[dict[str, Any]],
    usage: Usage | None,
) -> dict[str, Any]:
    """The response as it is now, with the settings of its request."""
    return {
        "id": envelope.response_id,
        "object": "response",
        "created_at": envelope.created_unix,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": envelope.model,
        "output": output,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": None if usage is None else _usage(usage),
        **_settings(request),
    }


def _settings(request: ResponsesRequest) -> dict[str, Any]:
    """The fields of the request that its response repeats."""
    repeated = request.model_dump(by_alias=True, exclude_none=True, include=_REPEATED)
    if request.tools:
        repeated["tools"] = [tool.model_dump() for tool in request.tools]
    settings = _UNSET | repeated
    settings["text"] = _UNSET["text"] | settings["text"]
    return settings


_UNSET: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
}
"""Values that a response has for fields that the request left out."""
_REPEATED: Final = set(_UNSET)


def _usage(usage: Usage) -> dict[str, Any]:
    counts = usage.to_json()
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": counts["total_tokens"],
    }
