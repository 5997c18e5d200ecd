"""A model's backend over flashinfer's wrappers on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from sluice_kernels import reference
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.prepare import capture_graphs
from sluice_runtime.layers import backend as backends
from sluice_runtime.layers.attention import PLAIN, LayerKind
from sluice_runtime.layers.backend import Backend
from sluice_runtime.layers.flashinfer_library import Target
from torch import Tensor

from tests.runtime import harness
from tests.runtime.layers.flashinfer_kernels import flashinfer_on_cpu
from tests.runtime.recorded_graph import capture, kernel

TARGET = Target(torch.device("cpu"), (9, 0), 132, "auto")


def sample_rows(logits: Tensor, *tables: Tensor) -> Tensor:
    """The kernel's reference, as one operation of a recorded graph."""

    def sampled(logits: Tensor, *tables: Tensor) -> None:
        tokens.copy_(reference.sample_rows(logits, *tables))

    tokens = torch.empty(len(logits), dtype=torch.int64)
    kernel(sampled, logits, *tables)
    return tokens


def flashinfer_backend(library: Any, kinds: Sequence[LayerKind] = PLAIN) -> Backend:
    """`library`: see `flashinfer_kernels`."""
    backend = backends.backend_over(TARGET, library, kinds)
    return replace(backend, sample_rows=sample_rows, decode_inputs=reference.decode_inputs)


def engines_on_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes engines that are to compute with plain torch compute with flashinfer instead."""
    library = flashinfer_on_cpu(monkeypatch)
    monkeypatch.setitem(
        backends.BACKENDS, "torch", lambda *found: flashinfer_backend(library, found[-1])
    )


def engines_with_graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes engines of the harness compute with flashinfer and graphs of up to four rows; gets one
    number a replay."""
    engines_on_flashinfer(monkeypatch)
    replays: list[int] = []

    def counted(step: Callable[[], None]) -> Callable[[], None]:
        replay = capture(step)

        def again() -> None:
            replays.append(1)
            replay()

        return again

    def build(*args: Any, **kwargs: Any) -> Engine:
        engine = build_engine(*args, **kwargs)
        capture_graphs(engine, 4, lambda: counted)
        return engine

    monkeypatch.setattr(harness, "build_engine", build)
    return replays
