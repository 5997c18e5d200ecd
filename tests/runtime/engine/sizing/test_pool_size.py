"""On a GPU the KV pool gets what a full step leaves, which runs before the pool is there."""

from __future__ import annotations

import logging
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, EngineHooks, build_engine
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.engine.sizing import host
from sluice_runtime.engine.sizing.gpu_plan import MIB, DeviceBytes
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.engine.sizing.pool_size import smallest_gpu_bytes
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.model.files import resolve
from sluice_runtime.parallel.group import SOLO, Group, Solo
from sluice_runtime.scheduler.batch import Batch

TOTAL = 1000 * MIB
TOKEN = 4 * 2 * 2 * 16 * 4
"""Bytes of a token of the model: layers, keys and values, heads, dimension, float32."""


class PretendedMemory:
    """Of a GPU with 900 MiB free, of which each step takes `step_mib` until it is released."""

    def __init__(self, step_mib: int, total: int = TOTAL) -> None:
        self.step_mib, self.total = step_mib, total
        self.taken_mib = 100
        self.steps: list[tuple[int, int]] = []
        """Tokens and rows."""

    def read(self) -> DeviceBytes:
        return DeviceBytes(self.total, self.total - self.taken_mib * MIB)

    def release(self) -> None:
        self.taken_mib = 100

    def computed(self, batch: Batch, logits: torch.Tensor) -> None:
        self.steps.append((batch.extend_tokens, len(logits)))
        self.taken_mib += self.step_mib


def built(
    memory: PretendedMemory,
    hooks: dict[str, Any] | None = None,
    group: Group = SOLO,
    **settings: Any,
) -> Engine:
    config = {
        "model": {"uri": "dummy://qwen3-tiny"},
        "accelerator": {"product": "T4", "count": 1},
        "threads": 1,
        "chunkSize": 512,
        "maxRunningRequests": 8,
        "cudaGraphMaxBatch": 4,
        **settings,
    }
    asked = hooks or {"on_logits": memory.computed}
    return build_engine(
        resolved(EngineConfig.model_validate(config)),
        resolve("dummy://qwen3-tiny"),
        EngineHooks(device=HostDevice(), device_memory=memory, **asked),
        group=group,
    )


def pool_mib(engine: Engine) -> float:
    with closing(engine.grammar_compiler):
        return engine.settings.limits.kv_pool_tokens * TOKEN / MIB


@pytest.mark.parametrize(
    ("settings", "step_mib", "left_mib"),
    [
        # 0.1 of 1000 MiB are not enough for the step, 2 MiB for each row of the graphs, and 512.
        ({"memoryPercent": 90, "contextLength": 4096}, 300, 900 - 300 - 8 - 512),
        ({"memoryPercent": 90, "contextLength": 4096}, 200, 900 - 200 - 8 - 512),
        ({"memoryPercent": 15, "contextLength": 4096}, 100, 900 - 850),
    ],
)
def test_the_pool_gets_what_a_full_step_or_the_memory_percent_leaves(
    settings: dict[str, Any], step_mib: int, left_mib: int
) -> None:
    memory = PretendedMemory(step_mib)
    # All rows could use more than there is.
    engine = built(memory, maxRunningRequests=64, **settings)
    assert pool_mib(engine) == pytest.approx(left_mib, abs=16 * TOKEN / MIB)
    assert memory.steps == [(512, 64)], "a full chunk, and all rows"
    assert engine.available_bytes == 900 * MIB


def test_pages_of_8_bits_are_a_quarter_of_those_in_float32() -> None:
    memory = PretendedMemory(200)
    settings: dict[str, Any] = {"memoryPercent": 90, "contextLength": 4096}
    engine = built(memory, maxRunningRequests=256, kvCacheDtype="fp8_e4m3", **settings)
    assert 4 * engine.pool.page_bytes == 16 * TOKEN
    left_mib = 900 - 200 - 8 - 512
    assert pool_mib(engine) / 4 == pytest.approx(left_mib, abs=16 * TOKEN / MIB)
    assert engine.ready("epoch").kv_dtype == "fp8_e4m3"


def test_what_plain_torch_gathers_in_a_long_context_is_kept_free_too() -> None:
    """256 MiB of keys and values, and four masks of 128."""
    memory = PretendedMemory(200)
    needed = 200 + 8 + 512 + 256 + 4 * 128
    with pytest.raises(OutOfMemoryError, match=f"a full step needs {needed} MiB"):
        built(memory, attentionBackend="torch", memoryPercent=90, contextLength=4096)


def test_what_the_full_step_did_not_do_is_kept_free_too() -> None:
    """Penalties of long contexts and grammars, which requests may ask for."""
    memory = PretendedMemory(1)
    engine = built(memory, maxRunningRequests=128, memoryPercent=90, contextLength=4096)
    vocabulary = engine.model.spec.vocabulary_size
    sampling = sampling_bytes(128, vocabulary, 4096) / MIB
    assert sampling > 10
    assert pool_mib(engine) == pytest.approx(900 - sampling - 8 - 512, abs=16 * TOKEN / MIB)


def test_a_step_that_leaves_too_little_is_told_with_numbers() -> None:
    with pytest.raises(OutOfMemoryError, match=r"needs 4 MiB; .* or chunkSize to 256"):
        built(PretendedMemory(379), memoryPercent=90, contextLength=4096)


def test_a_full_step_without_memory_is_told_the_next_chunk() -> None:
    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemoryError, match=r"warm-up: EXTEND step needs .* chunkSize 256 is"):
        built(PretendedMemory(0), hooks={"on_logits": fails})


def test_weights_that_do_not_fit_are_refused_before_they_are_read() -> None:
    memory = PretendedMemory(0, total=50 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"model weights want 0 MiB of each GPU"):
        built(memory, memoryPercent=1)
    assert not memory.steps


def test_an_engine_chooses_how_many_requests_run_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """300 times 1,024 tokens are 18 whole tiles of 16 requests; the full step has as many rows."""
    memory = PretendedMemory(1)
    settings: dict[str, Any] = {"contextLength": 2048, "kvPoolTokens": 300 * 1024}
    with caplog.at_level(logging.INFO, "sluice.engine"):
        engine = built(memory, maxRunningRequests=None, **settings)
    with closing(engine.grammar_compiler):
        assert engine.settings.max_running_requests == 288
        assert engine.ready("epoch").max_running_requests == 288
        assert memory.steps == [(512, 288)]
    assert "max_running_requests=288 (KvPool), from a KV pool of 307,200 tokens" in caplog.text


def test_grammars_beside_a_gpu_fit_the_memory_of_its_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "memory", lambda: host.Memory(4096 * MIB, 1024 * MIB))
    with (
        caplog.at_level(logging.INFO, "sluice.engine"),
        closing(built(PretendedMemory(1)).grammar_compiler),
    ):
        assert "1024 MiB are left; at most 14 requests may have a grammar at once" in caplog.text


class WithASmallerGpu(Solo):
    """A rank beside others, one of which has a GPU of 500 MiB."""

    def least(self, number: int) -> int:
        return min(number, TOTAL // 2)


@pytest.mark.parametrize(("group", "rows"), [(SOLO, 896), (WithASmallerGpu(), 448)])
def test_ranks_choose_alike_by_the_smallest_gpu(group: Group, rows: int) -> None:
    """0.9 of 1000 or 500 MiB, less the weights, which are below 1 MiB; 1 MiB a request."""
    settings: dict[str, Any] = {"contextLength": 256, "memoryPercent": 90}
    engine = built(PretendedMemory(1), group=group, maxRunningRequests=None, **settings)
    with closing(engine.grammar_compiler):
        assert engine.settings.max_running_requests == rows


@pytest.mark.parametrize(("gpus", "smallest"), [((), None), ((7, 5, 3), 5)])
def test_the_smallest_of_an_engines_own_gpus_counts(
    gpus: tuple[int, ...], smallest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = [SimpleNamespace(total_memory=size) for size in gpus]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    assert smallest_gpu_bytes(Accelerator(count=2), 2) == smallest
    assert smallest_gpu_bytes(Accelerator(), 1) is None
