"""The items of a response's output, as plain dicts: messages, reasoning and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sluice_runtime.server.response_writers import chat_logprobs
from sluice_runtime.server.responses.tools import Origin, input_of
from sluice_runtime.server.token_text import ScoredToken
from sluice_runtime.server.tools.calls import CallPart

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass
class MessageItem:
    """Text of the assistant."""

    item_id: str
    status: Status = "in_progress"
    texts: list[str] = field(default_factory=list)
    scores: list[ScoredToken] = field(default_factory=list)

    def part(self) -> dict[str, Any]:
        """The one part of the message's content."""
        text = "".join(self.texts)
        logprobs = logprobs_of(self.scores)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def to_json(self) -> dict[str, Any]:
        content = [] if self.status == "in_progress" else [self.part()]
        own = {"id": self.item_id, "type": "message", "status": self.status}
        return {**own, "role": "assistant", "content": content}


@dataclass
class ReasoningItem:
    """Reasoning of the model before its answer."""

    item_id: str
    status: Status = "in_progress"
    texts: list[str] = field(default_factory=list)

    def part(self) -> dict[str, Any]:
        """The one part of the reasoning's content."""
        return {"type": "reasoning_text", "text": "".join(self.texts)}

    def to_json(self) -> dict[str, Any]:
        content = [] if self.status == "in_progress" else [self.part()]
        own = {"id": self.item_id, "type": "reasoning", "status": self.status}
        return {**own, "summary": [], "content": content}


@dataclass
class CallItem:
    """A call of a function."""

    item_id: str
    call: CallPart
    """First part of the call."""
    origin: Origin
    """The tool that is called."""
    status: Status = "in_progress"
    texts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.texts)

    @property
    def content(self) -> dict[str, str]:
        """The call's arguments or, for a custom tool, its input text."""
        arguments = "" if self.status == "in_progress" else self.arguments
        if self.origin.is_custom:
            return {"input": input_of(arguments)}
        return {"arguments": arguments}

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "custom_tool_call" if self.origin.is_custom else "function_call",
            "status": self.status,
            "call_id": self.call.call_id,
            **self.origin.named,
            **self.content,
        }


OutputItem = ReasoningItem | MessageItem | CallItem


def logprobs_of(scores: Sequence[ScoredToken]) -> list[Any]:
    """One object a token, as in a chat; empty if logprobs were not requested."""
    logprobs = chat_logprobs(scores)
    assert logprobs is not None
    content: list[Any] = logprobs["content"]
    return content
