"""Weights arrive on a GPU as they are in their files; the KV pool leaves room for a full step."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.model.files import resolve
from sluice_runtime.model.load_progress import LoadProgress
from sluice_runtime.model.shard import Shard, Split
from sluice_runtime.model.staging import CudaCopies
from sluice_runtime.model.streamed_weights import StreamedWeights
from sluice_runtime.model.weights import Checkpoint

from benchmarks.turns import scaled
from tests.runtime.harness import engine_config

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
TENSORS = {
    "norm.weight": torch.rand(4096),
    "table.weight": torch.rand(5003, 1024).to(torch.bfloat16),
    "wide.weight": torch.rand(512, 4096),
}
BUSY = scaled(4096)
BLOCK_BYTES = 1 << 16
"""Hundreds of blocks, so that buffers are filled again while the GPU is busy."""


@pytest.mark.parametrize("ranks", [1, 4])
def test_parts_of_all_ranks_joined_are_the_whole(ranks: int, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    busy = torch.randn(BUSY, BUSY, device=GPU)
    copies = CudaCopies(GPU)
    with (
        Checkpoint(tmp_path) as checkpoint,
        StreamedWeights(checkpoint, copies, LoadProgress(0), BLOCK_BYTES) as source,
    ):
        for name, whole in TENSORS.items():
            for split in Split if whole.ndim == 2 else [Split.NONE]:
                for _ in range(8):
                    busy = busy @ busy.T / BUSY
                parts = [Shard(r, ranks).part(tuple(whole.shape), split) for r in range(ranks)]
                read = [source.read(name, part, torch.float32) for part in parts]
                source.settle()
                joined = torch.cat(read, dim=int(split.is_by_inputs)).cpu()
                count = 1 if split is not Split.NONE else ranks
                wanted = torch.cat([whole.float()] * count)
                assert torch.equal(joined, wanted), (name, split)


def test_a_full_step_fits_beside_the_pool_that_was_planned() -> None:
    found = torch.cuda.get_device_properties(GPU)
    accelerator = {"product": found.name, "memory_mib": found.total_memory >> 20, "count": 1}
    config = resolved(
        engine_config("dummy://qwen3-tiny", accelerator=accelerator, kv_pool_tokens=None)
    )
    engine = build_engine(config, resolve("dummy://qwen3-tiny"))
    with closing(engine.grammar_compiler):
        warm_up(engine.runner, engine.settings, engine.model.spec.vocabulary_size)
        _, total = torch.cuda.mem_get_info(GPU)
        reserved = total * (1 - (config.memory_percent or 100) / 100)
        assert engine.available_bytes >= 0.95 * reserved
