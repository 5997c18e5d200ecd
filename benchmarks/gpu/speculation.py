"""What drafts from a request's own tokens gain at 1, 4, 16 and 64 rows, Llama-3-8B's shape: the
workload "copying" of `benchmarks.speculation`, greedy, where every draft is right. One engine with
and without drafts, in turns; a ratio is the median of the rounds'."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from statistics import median
from unittest.mock import patch

import torch
from sluice_runtime.engine.build import Engine
from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.model import load
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.weights import RandomWeights
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.wire.messages import Generate, Sampling

from benchmarks.gpu.engines import engine, told, under
from benchmarks.speculation import COPYING, PHRASE, prompts
from benchmarks.turns import Measured, in_turns, scaled, stopwatch

SHAPE, SIZES = "llama3-8b", {"max_running_requests": 256}
ROWS, ROUNDS, DRAFTS, ANSWER = (1, 4, 16, 64), 3, 4, scaled(256)


class CopierWeights(RandomWeights):
    """Weights with which everything is computed but changes little: the next token of a phrase is
    the most probable."""

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> torch.Tensor:
        """A tensor's values; see `WeightSource`."""
        values = super().read(name, part, dtype)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values.mul_(5e-4)  # the embedding is small, too
        if name.endswith("embed_tokens.weight"):
            self._embedding = values
        if name == "lm_head.weight":
            tokens = torch.arange(len(values), device=values.device)
            after = tokens // PHRASE * PHRASE + (tokens + 1) % PHRASE
            after = after.where(after < len(values), tokens)
            values[after] = self._embedding / self._embedding.norm(dim=-1, keepdim=True)
        return values


@contextmanager
def copier() -> Iterator[Engine]:
    """An engine that drafts, with `CopierWeights`."""
    speculation = {"method": "NGram", "tokens": DRAFTS}
    with (
        patch.object(load, "RandomWeights", CopierWeights),
        engine(SHAPE, speculation=speculation, **SIZES) as made,
    ):
        yield made


def run(made: Engine, executor: Executor, rows: int, shift: int) -> Measured:
    """Runs all rows; measures from the first row's first token to the last token."""
    vocabulary = made.model.spec.vocabulary_size
    for index, prompt in enumerate(prompts(COPYING[0], rows, shift, vocabulary)):
        greedy = Sampling(temperature=0.0)
        made.scheduler.add(
            Generate(f"{rows}-{shift}-{index}", prompt, ANSWER, greedy, ignore_eos=True)
        )
    flight = deque[tuple[Batch, PendingResult]]()
    tokens = 0
    with stopwatch() as measured:
        while True:
            batch = made.scheduler.next_batch(time.monotonic())
            if batch is not None:
                flight.append((batch, executor.launch(batch)))
            if flight and (batch is None or len(flight) > executor.ahead):
                landed, result = flight.popleft()
                outcome = made.scheduler.process(landed, result(), time.monotonic())
                tokens += sum(len(delta.token_ids) for delta in outcome.deltas)
            elif batch is None:
                return measured(tokens)


def main() -> None:
    with copier() as made, closing(made.executor(overlap=True)) as executor:
        engines = {"on": made, "off": under(made, SHAPE, **SIZES)}
        for rows in ROWS:
            before = made.scheduler.status()
            runs = {name: partial(run, each, executor, rows) for name, each in engines.items()}
            seen = in_turns(runs, ROUNDS)
            after = made.scheduler.status()
            drafted = after.drafted_tokens - before.drafted_tokens
            accepted = after.accepted_tokens - before.accepted_tokens
            for name, every in seen.items():
                told(f"speculation.{name}.{rows}", median(e.rate for e in every), "tokens/s")
            ratios = [on.rate / off.rate for on, off in zip(seen["on"], seen["off"], strict=True)]
            told(
                f"speculation.ratio.{rows}",
                median(ratios),
                "on / off",
                least=min(ratios),
                most=max(ratios),
                drafted=drafted,
                accepted=accepted / drafted if drafted else None,
            )


if __name__ == "__main__":
    main()
