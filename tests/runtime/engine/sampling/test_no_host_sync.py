"""Whatever requests ask for, a step is sampled without the host waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np
import pytest
import torch
from sluice_runtime.engine.sampling.draw import SamplingTable, TableSize
from sluice_runtime.engine.sampling.logprobs import StepScores
from sluice_runtime.engine.sampling.masks import forbid
from sluice_runtime.grammar.masks import Masks
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode, RowAdded
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.wire.messages import Sampling
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.host_sync import GPU, FakeGpu, fake_tensors, no_host_sync

VOCABULARY = 3000
PROMPT: Final = (1, 2, 3)
ASKS: Final[dict[str, dict[str, Any]]] = {
    "temperature": {"temperature": 0.8},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.1},
    "bias": {"logit_bias": [(7, 1.0), (9, -100.0)]},
    "min_tokens": {"min_tokens": 4},
}


class OperationsSeen(TorchDispatchMode):
    """Names of torch's operators, as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def every_combination() -> Iterator[dict[str, Any]]:
    for chosen in product([False, True], repeat=len(ASKS)):
        parts = [ask for ask, wanted in zip(ASKS.values(), chosen, strict=True) if wanted]
        yield {"temperature": 0.0} | {key: value for part in parts for key, value in part.items()}


COMBINATIONS: Final = list(every_combination())
SIZE: Final = TableSize(len(COMBINATIONS), VOCABULARY, 100)


def added(row: int, parameters: dict[str, Any]) -> RowAdded:
    stops = (5,) if "min_tokens" in parameters else ()
    return RowAdded(
        row,
        str(row),
        Sampling(**parameters),
        3,
        key_of(PROMPT),
        stops,
        logprobs=row,
        prompt_logprobs=2,
    )


def step(table: SamplingTable, parameters: Sequence[dict[str, Any]]) -> None:
    """Rows come, a step samples them all, and nothing is read."""
    rows = tuple(range(len(parameters)))
    batch = Batch(
        1,
        ForwardMode.EXTEND,
        dropped_rows=rows,
        added_rows=tuple(map(added, rows, parameters)),
        extend_rows=tuple(ExtendRow(row, 0, PROMPT, samples=True) for row in rows),
    )
    table.apply(batch)
    hidden = torch.empty(len(PROMPT) * len(rows), VOCABULARY, device=GPU)
    logits = torch.empty(len(rows), VOCABULARY, device=GPU)
    assert table.logprobs is not None
    prompts = table.logprobs.read(batch, hidden, torch.Tensor.float)
    logprobs = table.logprobs.capture(logits, rows)
    for position in (3, 4):
        tokens = table.sample(logits, rows, np.full(len(rows), position))
        assert StepScores(prompts, logprobs, tokens).tables()


@pytest.mark.parametrize("name", [*ASKS, "everything"])
def test_no_request_makes_the_host_wait(name: str) -> None:
    parameters = COMBINATIONS[-1] if name == "everything" else {"temperature": 0.8} | ASKS[name]
    with fake_tensors(), torch.inference_mode():
        table = SamplingTable(SIZE, FakeGpu())
        with no_host_sync():
            step(table, [parameters, parameters])


@pytest.mark.process
def test_no_combination_in_one_step_makes_the_host_wait() -> None:
    with fake_tensors(), torch.inference_mode():
        table = SamplingTable(SIZE, FakeGpu())
        with no_host_sync():
            step(table, COMBINATIONS)


def test_a_kernel_for_whole_rows_is_one_operation_and_an_upload() -> None:
    from sluice_kernels.triton import operators

    parameters = {key: value for key, value in COMBINATIONS[-1].items() if "penalty" not in key}
    with fake_tensors(), torch.inference_mode():
        backend = replace(TORCH, sample_rows=operators.sample_rows)
        table = SamplingTable(SIZE, FakeGpu(), backend)
        with no_host_sync():
            step(table, [parameters, {"temperature": 0.0}, parameters])
        rows = tuple(range(SIZE.rows))
        new = tuple(added(row, {"top_p": 0.9}) for row in rows)
        table.apply(Batch(2, ForwardMode.EXTEND, dropped_rows=rows, added_rows=new))
        logits = torch.empty(SIZE.rows, VOCABULARY, device=GPU)
        with OperationsSeen() as seen:
            table.sample(logits, rows, np.zeros(SIZE.rows, np.int64))
    assert "sluice_triton.sample_rows.default" in seen.names
    assert len(seen.names) <= 4, seen.names


def test_masks_do_not_make_the_host_wait() -> None:
    words = np.zeros((2, -(-VOCABULARY // 32)), np.int32)
    with fake_tensors(), torch.inference_mode(), no_host_sync():
        for rows in (2, 3):
            logits = torch.empty(rows, VOCABULARY, device=GPU)
            forbid(logits, Masks([0, 1], words), FakeGpu())
