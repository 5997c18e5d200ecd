"""A model's backend over flashinfer's wrappers on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from sluice_kernels import reference
from sluice_runtime.layers.attention_flashinfer import FlashinferAttention
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.layers.flashinfer_graphs import GraphWrappers
from sluice_runtime.layers.flashinfer_library import Target
from sluice_runtime.layers.stacks import PlainStack
from torch import Tensor

from tests.runtime.recorded_graph import kernel

TARGET = Target(torch.device("cpu"), (9, 0), 132, "auto")


def sample_rows(logits: Tensor, *tables: Tensor) -> Tensor:
    """The kernel's reference, as one operation of a recorded graph."""

    def sampled(logits: Tensor, *tables: Tensor) -> None:
        tokens.copy_(reference.sample_rows(logits, *tables))

    tokens = torch.empty(len(logits), dtype=torch.int64)
    kernel(sampled, logits, *tables)
    return tokens


def flashinfer_backend(library: Any) -> Backend:
    """`library`: see `flashinfer_kernels`."""
    operators = replace(TORCH.operators, attention=FlashinferAttention(TARGET, library))
    return replace(
        TORCH,
        name="flashinfer",
        operators=operators,
        layers=lambda layers, shape: PlainStack(layers, shape, operators),
        reads_whole_pages=False,
        graph_wrappers=partial(GraphWrappers, library, TARGET),
        sample_rows=sample_rows,
        decode_inputs=reference.decode_inputs,
    )
