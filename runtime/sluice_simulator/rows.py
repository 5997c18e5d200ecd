"""What a simulated step has in place of the model runner: the length of each row, and its next
token.

A row's length stands for its keys and values. The next token depends only on that length, so
chunks, retractions and overlapped steps do not change answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice_runtime.scheduler.batch import Batch, SampledTokens

from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.tokens import END_OF_ANSWER, answer_id, request_number


@dataclass(slots=True)
class Row:
    """A request that has a row; lengths are in tokens."""

    request: int
    """Number of the request in the trace."""
    length: int
    last_length: int
    """Length of the row when the answer's last token is sampled."""
    token: int

    @property
    def steps_left(self) -> int:
        """Number of decode steps before the one that ends the answer; negative once it has
        ended."""
        return self.last_length - self.length - 1

    def next_token(self) -> int:
        return END_OF_ANSWER if self.length >= self.last_length else self.token


class SimulatedRows:
    """The rows of a simulated engine; requests are known by their number in the trace."""

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
        """The row at an index. `length`: the length to give a row whose prompt was computed
        elsewhere."""
        request = self._requests[index]
        last = request.prompt_tokens + request.output_tokens - 1
        return Row(index, length, last, answer_id(index))
