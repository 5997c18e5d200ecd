"""A failed allocation ends in one line that names phase, wants and the setting to lower."""

from __future__ import annotations

import pytest
import torch
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.memory import allocation
from sluice_runtime.engine.plan import resolved
from sluice_runtime.errors import (
    STARTUP_REASONS,
    OutOfMemoryError,
    StepOutOfMemoryError,
)
from sluice_runtime.messages import Sampling
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model_files import resolve
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode, PagesAppended, RowAdded

from tests.runtime.harness import engine_config


def test_torchs_own_failure_is_recognised() -> None:
    with (
        pytest.raises(OutOfMemoryError) as caught,
        allocation("KV pool", "9 tokens of 8 bytes", "kvPoolTokens"),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)
    assert str(caught.value).startswith("KV pool wants 9 tokens of 8 bytes; lower kvPoolTokens (")
    assert "\n" not in str(caught.value)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shape"), allocation("step", "1 token", "chunkSize"):
        raise RuntimeError("shape mismatch")


def test_a_step_without_memory_is_another_failure_which_a_new_start_may_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = resolved(engine_config("dummy://qwen3-tiny"))
    engine = build_engine(config, resolve(config.model.uri))

    def hidden(*_: object) -> torch.Tensor:
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(Decoder, "hidden", hidden)
    batch = Batch(
        1,
        ForwardMode.EXTEND,
        added_rows=(RowAdded(0, "a", Sampling()),),
        appended_pages=(PagesAppended(0, (0,)),),
        extend_rows=(ExtendRow(0, 0, (1, 2, 3), samples=True),),
    )
    with pytest.raises(StepOutOfMemoryError, match="EXTEND step wants 3 tokens") as caught:
        engine.runner.forward(batch)
    assert caught.value.reason not in STARTUP_REASONS
