"""The runner's side of a simulated step: how long each row is, and what token comes next.

What a runner keeps as keys and values is a length here. The next token depends on the row's length
only, so chunks, retractions and steps in flight change no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice_runtime.scheduler.batch import Batch, SampledTokens

from sluice_simulator.shape import StepShape
from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.tokens import END_OF_ANSWER, answer_id


@dataclass(slots=True)
class Row:
    """A request while it has a row; lengths in tokens."""

    length: int
    last_length: int
    """Length of the row when its answer's last token is drawn."""
    token: int

    def next_token(self) -> int:
        return END_OF_ANSWER if self.length >= self.last_length else self.token


class SimulatedRows:
    """Applies batches to rows. Requests are named by their number in the trace."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self._requests = requests
        self._rows: dict[int, Row] = {}

    def forward(self, batch: Batch) -> tuple[StepShape, SampledTokens]:
        """What the step cost is a function of, and the tokens that it draws."""
        for number in batch.dropped_rows:
            del self._rows[number]
        for added in batch.added_rows:
            self._rows[added.row] = self._row(int(added.request_id))
        tokens, products = 0, 0
        drawn: list[int] = []
        for extend in batch.extend_rows:
            row, count = self._rows[extend.row], len(extend.token_ids)
            row.length = extend.start + count
            tokens += count
            products += count * extend.start + count * (count + 1) // 2
            if extend.samples:
                drawn.append(row.next_token())
        context = 0
        for number in batch.decode_rows:
            row = self._rows[number]
            row.length += 1
            context += row.length
            drawn.append(row.next_token())
        shape = StepShape(tokens, products, len(batch.decode_rows), context)
        return shape, SampledTokens(batch.step, tuple(drawn))

    def advance(self, numbers: Sequence[int], steps: int) -> None:
        """`steps` decode steps at once, none of which ends an answer."""
        for number in numbers:
            self._rows[number].length += steps

    def _row(self, index: int) -> Row:
        request = self._requests[index]
        last = request.prompt_tokens + request.output_tokens - 1
        return Row(0, last, answer_id(index))
