"""The span of one request in this engine, with a part for its prompt and one for its answer.

It has the attributes of OpenTelemetry's conventions for generative models: settings and token
counts, but no text of prompt or answer. Only requests whose trace is recorded use this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.spans import AttributeValue, Record, Span, record_part

from sluice_runtime.process.spans import DECODE, ENGINE, PREFILL
from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.failures import error_type
from sluice_runtime.server.fields import AnsweredRequest
from sluice_runtime.server.response_writers import Envelope, Usage

PROVIDER: Final = "sluice"
Operation = Literal["chat", "text_completion"]


class GenerationFacts(NamedTuple):
    """Facts of a request for its span. `usage` counts only pieces that this engine generated."""

    operation: Operation
    request: AnsweredRequest
    envelope: Envelope
    plan: ChoicePlan
    """Plan of the first choice; the other choices have equal settings."""
    usage: Usage
    server: tuple[str, int | None] | None
    """The address and the port that the request came to."""

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """Attributes known before the first token. They show the settings in effect, with the
        model's defaults and with `max_tokens` limited by the context."""
        sampling, request = self.plan.sampling, self.request
        optional: dict[str, AttributeValue | None] = {
            "gen_ai.request.model": request.requested_model,
            "gen_ai.request.top_k": sampling.top_k if sampling.top_k > 0 else None,
            "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
            "gen_ai.request.choice.count": request.choices if request.choices > 1 else None,
            "gen_ai.request.stream": request.stream or None,
            "server.address": self.server[0] if self.server else None,
            "server.port": self.server[1] if self.server else None,
        }
        return {
            "gen_ai.operation.name": self.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.max_tokens": self.plan.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.response.id": self.envelope.response_id,
            "gen_ai.response.model": self.envelope.model,
            **{name: value for name, value in optional.items() if value is not None},
        }


@dataclass(slots=True)
class RequestSpan:
    """Span of a request, from its arrival to its end."""

    record: Record
    ids: tuple[str, str]
    """Traceparents: this span's, under which the engine process puts its spans, and its
    parent's."""
    arrival_seconds: float
    clock: Callable[[], float]
    role: Role
    facts: GenerationFacts
    first_seconds: float | None = None
    _reasons: dict[int, str] = field(default_factory=dict)
    """Finish reasons, by the index of the choice."""

    def piece_arrived(self, piece: Piece) -> None:
        """Notes a piece of the answer: the time of the first, and finish reasons."""
        if self.first_seconds is None:
            self.first_seconds = self.clock()
        self.facts.usage.add(piece)
        if piece.finish_reason is not None:
            self._reasons[piece.index] = piece.finish_reason

    def end(self, outcome: str, error: Exception | None) -> None:
        """Ends and records the span. `error`: why the answer is incomplete; None if it is
        complete."""
        now, (own, parent) = self.clock(), self.ids
        if self.first_seconds is not None:
            if self.role is Role.MIXED:
                record_part(
                    self.record, own, PREFILL, (self.arrival_seconds, self.first_seconds), {}
                )
            record_part(self.record, own, DECODE, (self.first_seconds, now), {})
        attributes = {
            "sluice.span": ENGINE,
            "sluice.role": self.role.value,
            "sluice.outcome": outcome,
            **self.facts.attributes,
            **self._answer_attributes(),
        }
        if error is not None:
            attributes["error.type"] = error_type(error)
        name = f"{self.facts.operation} {self.facts.envelope.model}"
        message = None if error is None else str(error)
        self.record(
            Span(name, own, parent, self.arrival_seconds, now, "server", attributes, message)
        )

    def _answer_attributes(self) -> dict[str, AttributeValue]:
        usage = self.facts.usage.to_json()
        attributes: dict[str, AttributeValue] = {
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        }
        if self.facts.usage.reasoning_tokens:
            attributes["gen_ai.usage.reasoning.output_tokens"] = self.facts.usage.reasoning_tokens
        if self._reasons:
            reasons = tuple(self._reasons[index] for index in sorted(self._reasons))
            attributes["gen_ai.response.finish_reasons"] = reasons
        if self.facts.request.stream and self.first_seconds is not None:
            seconds = self.first_seconds - self.arrival_seconds
            attributes["gen_ai.response.time_to_first_chunk"] = seconds
        return attributes
