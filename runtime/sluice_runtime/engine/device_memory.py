"""The memory of the GPU that the engine computes on, and what a full step takes of it, measured.

A full step runs before the KV pool is allocated: one layer of the model over a pool of one layer,
as large as the step needs. What the device has less of afterwards is what such steps take: torch
keeps the most that it ever had in use, and memory of other libraries counts too. Decides nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch
from sluice_contract.config.accelerators import Accelerator

from sluice_runtime.engine.device import place_of
from sluice_runtime.engine.device_sizes import DeviceBytes
from sluice_runtime.engine.runner import Runner
from sluice_runtime.engine.warm_up import full_step
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.scheduler.settings import SchedulerSettings


class DeviceMemory(Protocol):
    """Of one GPU."""

    def read(self) -> DeviceBytes: ...

    def release(self) -> None:
        """Gives back what is cached and not in use."""
        ...


class CudaMemory:
    """See `DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> DeviceBytes:
        available, total = torch.cuda.mem_get_info(self._device)
        return DeviceBytes(total, available)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


def smallest_gpu_bytes(accelerator: Accelerator | None, ranks: int) -> int | None:
    """Memory of the smallest of an engine's GPUs, before any of them is used; None on CPUs, and
    where torch finds no GPU."""
    if place_of(accelerator).type == "cpu":
        return None
    gpus = range(min(ranks, torch.cuda.device_count()))
    return min((torch.cuda.get_device_properties(i).total_memory for i in gpus), default=None)


def device_memory(device: torch.device) -> DeviceMemory | None:
    """None on a CPU, whose memory `engine.host` knows."""
    return CudaMemory(device) if device.type == "cuda" else None


def measured_step(
    memory: DeviceMemory,
    pool_of_one_layer: Callable[[], PagePool],
    runner_over: Callable[[PagePool], Runner],
    settings: SchedulerSettings,
    vocabulary_size: int,
) -> int:
    """Bytes that a full step takes beside weights and KV pool, with what sampling and other tables
    take as long as the engine runs. Everything is given back.

    Raises:
        OutOfMemoryError: the step found too little memory.
    """
    before = memory.read().available
    full_step(runner_over(pool_of_one_layer()), settings, vocabulary_size)
    taken = before - memory.read().available
    memory.release()
    return max(0, taken)
