"""The span of one request in this engine, with a part for its prompt and one for its answer.

It has the attributes that OpenTelemetry's conventions name for generative models: what was asked
and counted, and no word of prompt or answer. A file of its own: only requests whose trace is
recorded use it.
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
    """Facts of a request for its span. `usage` is counted here, from this engine's pieces."""

    operation: Operation
    request: AnsweredRequest
    envelope: Envelope
    plan: ChoicePlan
    """Plan of the first choice: all have equal settings."""
    usage: Usage
    server: tuple[str, int | None] | None
    """The address and the port that the request came to."""

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """Attributes known before the first token. Settings are those in effect: with the model's
        defaults, and `max_tokens` as the context allows it."""
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
    """Traceparents: of this span, to which the engine process's spans belong, and of its parent."""
    arrival_seconds: float
    clock: Callable[[], float]
    role: Role
    facts: GenerationFacts
    first_seconds: float | None = None
    _reasons: dict[int, str] = field(default_factory=dict)
    """Why choices finished, by their index."""

    def piece_arrived(self, piece: Piece) -> None:
        """A piece of the answer has come."""
        if self.first_seconds is None:
            self.first_seconds = self.clock()
        self.facts.usage.add(piece)
        if piece.finish_reason is not None:
            self._reasons[piece.index] = piece.finish_reason

    def end(self, outcome: str, error: Exception | None) -> None:
        """The answer is whole, or `error` says why not."""
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
