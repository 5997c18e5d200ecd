"""A failed allocation becomes one line with phase, wanted memory and the setting to lower."""

from __future__ import annotations

import pytest
import torch
from sluice_runtime.engine.memory import allocation
from sluice_runtime.errors import (
    OutOfMemoryError,
)


def test_a_failed_allocation_of_torch_is_recognised() -> None:
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
