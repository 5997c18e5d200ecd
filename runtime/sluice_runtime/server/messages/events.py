"""Writes a chat's answer in Anthropic's form: as events of a stream, or as a whole message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pydantic_core

from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.generation import ResumableChoice
from sluice_runtime.server.messages.request import PromptFields
from sluice_runtime.server.response_writers import Envelope, NamedEvents, Usage
from sluice_runtime.server.tools.calls import CallPart

Event = dict[str, Any]

SIGNATURE: Final = "unsigned"
"""Signature of thinking blocks; clients send back only blocks with a signature."""
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: Final = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
"""Field of a block's deltas, by the block's type."""


@dataclass
class _Block:
    kind: Literal["text", "thinking", "tool_use"]
    call: CallPart | None = None
    """The first part of a call."""
    parts: list[str] = field(default_factory=list)

    def to_json(self, text: str, signature: str = "") -> dict[str, Any]:
        """The block as JSON, with this text; for a tool call, the text is its input."""
        if self.kind == "text":
            return {"type": "text", "text": text}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": signature}
        assert self.call is not None, "a call's block begins with the call"
        own = {"id": self.call.call_id, "name": self.call.name, "input": _input(text)}
        return {"type": "tool_use", **own}


def _input(arguments: str) -> Any:
    """A call's arguments as an object; they may be cut off."""
    try:
        value = pydantic_core.from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


class MessageWriter:
    """Writes one message; its pieces are passed in order."""

    def __init__(self, request: PromptFields, envelope: Envelope, usage: Usage) -> None:
        self._envelope = envelope
        self.usage = usage
        self._blocks: list[_Block] = []
        self._open = False
        """Whether the last block is not complete."""
        self._begun = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def chunk(self, piece: Piece) -> NamedEvents | None:
        """The events for a piece; None when there is nothing to send."""
        self.usage.add(piece)
        events = [] if self._begun else self._beginning()
        if piece.reasoning:
            events += self._delta("thinking", piece.reasoning)
        for part in piece.text_and_calls:
            events += self._delta("text", part) if isinstance(part, str) else self._call(part)
        if piece.finish_reason is not None:
            self._stop_sequence = piece.stop
            reason = _REASONS[piece.finish_reason]
            self._stop_reason = "stop_sequence" if piece.stop is not None else reason
        return NamedEvents(tuple(events)) if events else None

    def skip_sent(self, choice: ResumableChoice) -> None:
        """Counts what another engine has sent, and writes none of it."""
        for piece in choice.sent:
            self.chunk(piece)

    def final_chunk(self) -> NamedEvents:
        """The events that end the message."""
        events = [] if self._begun else self._beginning()
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        events += [
            *self._close(),
            {"type": "message_delta", "delta": delta, "usage": _usage(self.usage)},
            {"type": "message_stop"},
        ]
        return NamedEvents(tuple(events))

    def failure_chunk(self, message: str) -> None:
        """Returns None, because an error event ends the stream."""

    def whole_response(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        """The whole message, for requests without streaming."""
        for piece in pieces:
            self.chunk(piece)
        content = [block.to_json("".join(block.parts), SIGNATURE) for block in self._blocks]
        return self._message(content, _usage(self.usage))

    def _beginning(self) -> list[Event]:
        self._begun = True
        usage = _usage(self.usage) | {"output_tokens": 0}
        return [
            {"type": "message_start", "message": self._message([], usage)},
            {"type": "ping"},
        ]

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self._envelope.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
            "content": content,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": usage,
        }

    def _delta(self, kind: Literal["text", "thinking"], text: str) -> list[Event]:
        if self._open and self._blocks[-1].kind == kind:
            return [self._more(text)]
        return [*self._close(), self._begin(_Block(kind)), self._more(text)]

    def _call(self, part: CallPart) -> list[Event]:
        events: list[Event] = []
        if part.call_id is not None:
            events += [*self._close(), self._begin(_Block("tool_use", part))]
        if part.arguments:
            events.append(self._more(part.arguments))
        return events

    def _begin(self, block: _Block) -> Event:
        self._blocks.append(block)
        self._open = True
        return self._event("content_block_start", content_block=block.to_json(""))

    def _more(self, text: str) -> Event:
        block = self._blocks[-1]
        block.parts.append(text)
        field_name = _DELTAS[block.kind]
        kind = "input_json" if block.kind == "tool_use" else block.kind
        return self._event("content_block_delta", delta={"type": f"{kind}_delta", field_name: text})

    def _close(self) -> list[Event]:
        """Events that end the open block, if there is one."""
        if not self._open:
            return []
        self._open = False
        events = []
        if self._blocks[-1].kind == "thinking":
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            events.append(self._event("content_block_delta", delta=signed))
        return [*events, self._event("content_block_stop")]

    def _event(self, kind: str, **own: Any) -> Event:
        return {"type": kind, "index": len(self._blocks) - 1, **own}


def _usage(usage: Usage) -> dict[str, int]:
    """Token counts in Anthropic's form, which excludes cached tokens from `input_tokens`."""
    counts = usage.to_json()
    cached: int = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counts["completion_tokens"],
    }
