"""The runner's side of a simulated step: the length of each row, and its next token.

Keys and values are represented by a length. The next token depends on the row's length only, so
chunks, retractions and steps in flight change no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice_runtime.scheduler.batch import Batch, SampledTokens

from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.tokens import END_OF_ANSWER, answer_id, request_number


@dataclass(slots=True)
class Row:
    """A request while it has a row; lengths in tokens."""

    request: int
    """Number of the request in the trace."""
    length: int
    last_length: int
    """Length of the row when its answer's last token is drawn."""
    token: int

    @property
    def steps_left(self) -> int:
        """Decode steps that do not end the answer; negative when it has ended."""
        return self.last_length - self.length - 1

    def next_token(self) -> int:
        return END_OF_ANSWER if self.length >= self.last_length else self.token


class SimulatedRows:
    """Applies batches to rows. Requests are named by their number in the trace."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self._requests = requests
        self._rows: dict[int, Row] = {}

    def forward(self, batch: Batch) -> SampledTokens:
        """One token for each of the batch's sampling rows."""
        rows, drawn = self._rows, []
        for number in batch.dropped_rows:
            del rows[number]
        for added in batch.added_rows:
            rows[added.row] = self._row(request_number(added.request_id), added.computed_tokens)
        for extend in batch.extend_rows:
            row = rows[extend.row]
            if batch.layers is None or batch.layers.last:
                row.length = extend.start + len(extend.token_ids)
            if extend.samples:
                drawn.append(row.next_token())
        for number in batch.decode_rows:
            row = rows[number]
            row.length += 1
            drawn.append(row.next_token())
        return SampledTokens(batch.step, tuple(drawn))

    def answering(self) -> list[Row]:
        """Rows whose answer has not ended."""
        return [row for row in self._rows.values() if row.length < row.last_length]

    def _row(self, index: int, length: int) -> Row:
        """`length`: of a row whose prompt was computed elsewhere."""
        request = self._requests[index]
        last = request.prompt_tokens + request.output_tokens - 1
        return Row(index, length, last, answer_id(index))
