"""Numbers reach the device whole: a staging buffer is not filled while a copy reads it. A failed
allocation becomes one line with phase, wanted memory and the setting to lower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.config.accelerators import Accelerator
from sluice_runtime.engine.device import (
    CPU,
    Column,
    Device,
    HostDevice,
    StreamDevice,
    allocation,
    step_device,
)
from sluice_runtime.errors import OutOfMemoryError
from torch import Tensor

from tests.runtime.engine.late_device import LateDevice

COLUMNS = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=40), min_size=1, max_size=6)


@pytest.mark.parametrize("made", [HostDevice, LateDevice])
@given(uploads=st.lists(COLUMNS, min_size=1, max_size=5))
def test_columns_arrive_as_they_were(
    made: Callable[[], Device], uploads: list[list[list[int]]]
) -> None:
    device = made()
    columns = [[np.array(numbers, np.int64) for numbers in upload] for upload in uploads]
    arrived = [device.upload(upload) for upload in columns]
    assert [[t.tolist() for t in tensors] for tensors in arrived] == uploads


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_a_column_keeps_its_type(dtype: type[np.number[Any]]) -> None:
    column: Column = np.arange(5).astype(dtype)
    (arrived,) = LateDevice().upload([column])
    assert arrived.dtype is torch.from_numpy(column).dtype
    assert arrived.tolist() == column.tolist()


class HeldEvent:
    """Of a copy that ends when it is waited for."""

    def __init__(self, held: list[str]) -> None:
        self._held = held
        self._reads = False

    def record(self) -> None:
        assert not self._reads, "the buffer was filled while a copy read it"
        self._reads = True

    def synchronize(self) -> None:
        self._held.append("waited" if self._reads else "free")
        self._reads = False


def test_a_buffer_is_filled_again_only_when_its_copy_has_finished() -> None:
    """Also where it has become too small, and another takes its place."""
    waits: list[str] = []
    sizes: list[int] = []

    def allocate(size: int) -> Tensor:
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    device = StreamDevice(CPU, allocate, lambda: HeldEvent(waits), buffers=2)
    small, large = np.zeros(8, np.int64), np.zeros(100_000, np.int64)
    device.upload([small])
    device.upload([small])
    assert waits == []
    device.upload([small])
    device.upload([large])
    assert waits == ["waited", "waited"]
    assert sizes == [1 << 16, 1 << 16, 1 << 20]


def test_an_inbox_is_filled_in_turns_and_only_when_a_copy_has_finished() -> None:
    """A step that is filled and not sent leaves its buffer to the next one, without a wait."""
    waits: list[str] = []
    allocate = lambda size: torch.zeros(size, dtype=torch.uint8)  # noqa: E731
    inbox = StreamDevice(CPU, allocate, lambda: HeldEvent(waits)).inbox(3)
    address = inbox.tensor.data_ptr()
    turns = []
    for step in range(4):
        inbox.writable()
        turn = inbox.writable()
        turns.append(turn)
        inbox.buffers[turn].array[:] = step
        inbox.send()
        assert inbox.tensor.tolist() == [step] * 3
    assert turns == [0, 1, 0, 1]
    assert waits == ["free"] * 4 + ["waited", "free"] * 2
    assert inbox.tensor.data_ptr() == address


def test_an_inbox_of_the_host_is_its_buffer() -> None:
    inbox = HostDevice().inbox(3)
    inbox.buffers[inbox.writable()].array[:] = 7
    inbox.send()
    assert inbox.tensor.tolist() == [7] * 3


def test_a_mirror_on_the_host_is_the_table_itself_and_elsewhere_a_copy() -> None:
    for device, follows in ((HostDevice(), True), (LateDevice(), False)):
        table = np.zeros((2, 3), np.int64)
        mirrored = device.mirror(table)
        table[1, 2] = 7
        assert (int(mirrored[1, 2]) == 7) is follows


def test_results_are_read_once_they_have_arrived() -> None:
    device = LateDevice()
    (results,) = device.fetch([torch.arange(3)])()
    assert results.tolist() == [0, 1, 2]
    assert device.waited == 1


def test_without_an_accelerator_steps_are_computed_on_the_host() -> None:
    for accelerator in (None, Accelerator()):
        device = step_device(accelerator)
        assert (device.place, device.asynchronous) == (CPU, False)


def test_a_failed_allocation_of_torch_is_recognised() -> None:
    with (
        pytest.raises(OutOfMemoryError) as caught,
        allocation("KV pool", "9 tokens of 8 bytes", "kvPoolTokens"),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)
    assert str(caught.value).startswith("KV pool needs 9 tokens of 8 bytes; lower kvPoolTokens (")
    assert "\n" not in str(caught.value)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shape"), allocation("step", "1 token", "chunkSize"):
        raise RuntimeError("shape mismatch")
