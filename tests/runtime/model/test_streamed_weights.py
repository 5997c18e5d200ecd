"""What is read to a device, whole or in parts, is what the files hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sluice_runtime.errors import InvalidConfigError, ModelLoadError
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import DUMMIES
from sluice_runtime.model.layer_tensors import WHOLE_ON_CPU, Reader
from sluice_runtime.model.load import build_decoder, check_division
from sluice_runtime.model.load_progress import LoadProgress
from sluice_runtime.model.shard import Shard, Split, TensorPart
from sluice_runtime.model.staging import Wait
from sluice_runtime.model.streamed_weights import StreamedWeights
from sluice_runtime.model.weights import (
    Checkpoint,
    MappedWeights,
    RandomWeights,
    WeightSource,
)
from torch import Tensor
from torch.testing import assert_close

from tests.pairwise import matrix
from tests.runtime.layers.layouts import layout

TENSORS = {
    "norm.weight": torch.rand(37),
    "table.weight": torch.rand(259, 24),
    "half.weight": torch.rand(64, 40).to(torch.bfloat16),
    "wide.weight": torch.rand(3, 512),
}
BLOCK_BYTES = 2048
"""One row of `wide.weight`; other tensors take one block and a part of one, or many."""


class LateCopies:
    """A device that copies nothing before somebody waits for it."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._waiting: list[Callable[[], object]] = []

    def allocate(self, size: int) -> Tensor:
        self.allocated_bytes += size
        return torch.empty(size, dtype=torch.uint8)

    def follow(self) -> None:
        pass

    def begin(self, rows: Tensor, columns: slice, target: Tensor) -> Wait:
        def copy() -> None:
            target.copy_(rows[:, columns])

        done: list[bool] = []

        def wait() -> None:
            if not done:
                done.append(True)
                copy()

        self._waiting.append(wait)
        return wait

    def finish(self) -> None:
        while self._waiting:
            self._waiting.pop()()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def checkpoint(folder: Path) -> Iterator[Checkpoint]:
    with Checkpoint(folder) as opened:
        yield opened


@pytest.fixture
def streamed(checkpoint: Checkpoint) -> Iterator[StreamedWeights]:
    with StreamedWeights(checkpoint, LateCopies(), LoadProgress(0), BLOCK_BYTES) as source:
        yield source


SOURCES = ["mapped", "streamed"]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Any:
    if request.param == "mapped":
        return MappedWeights(checkpoint)
    return request.getfixturevalue("streamed")


@pytest.mark.parametrize(
    ("source", "ranks", "dtype"),
    matrix(SOURCES, [1, 2, 3, 4, 64], [torch.float32, torch.bfloat16], others=pytest.mark.full),
    ids=str,
    indirect=["source"],
)
def test_the_parts_of_all_ranks_joined_are_the_whole(
    source: WeightSource, ranks: int, dtype: torch.dtype
) -> None:
    read = {}
    for name, whole in TENSORS.items():
        for split in Split if whole.ndim == 2 else [Split.NONE]:
            parts = [Shard(rank, ranks).part(tuple(whole.shape), split) for rank in range(ranks)]
            read[name, split] = [source.read(name, part, dtype) for part in parts]
            assert [tensor.shape for tensor in read[name, split]] == [part.shape for part in parts]
    source.settle()
    for (name, split), tensors in read.items():
        wanted = TENSORS[name].to(dtype)
        if split is Split.NONE:
            assert all(torch.equal(tensor, wanted) for tensor in tensors)
        else:
            assert torch.equal(torch.cat(tensors, dim=int(split.is_by_inputs)), wanted)
    assert source.unread() == []


def test_host_memory_holds_the_buffers_only(checkpoint: Checkpoint) -> None:
    copies = LateCopies()
    with StreamedWeights(checkpoint, copies, LoadProgress(0), BLOCK_BYTES) as source:
        for name, whole in TENSORS.items():
            source.read(name, Shard().part(tuple(whole.shape), Split.NONE), torch.float32)
        source.settle()
    assert copies.allocated_bytes == 12 * BLOCK_BYTES


def test_a_file_that_becomes_shorter_ends_the_start_in_one_line(
    streamed: StreamedWeights, folder: Path
) -> None:
    part = Shard().part((259, 24), Split.NONE)
    streamed.read("table.weight", part, torch.float32)
    streamed.settle()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    streamed.read("table.weight", part, torch.float32)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read at byte \d+") as e:
        streamed.settle()
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_quantised_weights_are_refused_by_name(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"q.weight": torch.ones(4, 4).to(dtype)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        part = Shard().part((4, 4), Split.NONE)
        with pytest.raises(ModelLoadError, match=r"q\.weight has type .*8.*; allowed: F64, F32, F"):
            MappedWeights(checkpoint).read("q.weight", part, torch.float32)


def test_the_log_says_how_much_was_read_and_how_fast(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    now = [0.0]
    told: list[int] = []
    progress = LoadProgress(16_000_000_000, lambda read, _: told.append(read), lambda: now[0])
    for now[0] in (0.5, 2.0, 5.0, 8.0):
        progress.read(2_000_000_000)
    progress.finished()
    assert told == [4_000_000_000, 6_000_000_000, 8_000_000_000, 8_000_000_000]
    assert [record.getMessage() for record in caplog.records] == [
        "weights: 6.00 GB read at 1.20 GB/s, of 16.0 GB of files",
        "weights: 8.00 GB read at 1.00 GB/s, in 8.0 s",
    ]


LIKE_QWEN3 = ("llama-tiny", "mistral-tiny")
"""Families with no tensors but those of qwen3-tiny."""


class Recorded(RandomWeights):
    """Random weights that remember what they gave."""

    def __init__(self) -> None:
        super().__init__(3, torch.device("cpu"))
        self.tensors: dict[str, Tensor] = {}

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        own = super().read(name, part, dtype)
        whole = self.tensors.setdefault(name, own.new_zeros(part.whole))
        whole.narrow(part.dim, part.begin, part.length).copy_(own)
        return own


@pytest.mark.parametrize("name", [name for name in DUMMIES if name not in LIKE_QWEN3])
def test_a_streamed_model_computes_what_a_mapped_one_does(name: str, tmp_path: Path) -> None:
    spec = spec_from(DUMMIES[name])

    def built(source: WeightSource) -> Decoder:
        return build_decoder(Reader(spec, source, torch.float32, WHOLE_ON_CPU), TORCH)

    def answer(model: Decoder) -> Tensor:
        where = layout(4)
        n = int(where.begins[-1])
        shape = KvShape(spec.layers, spec.kv_heads, spec.head_dim, torch.float32)
        pool = PagePool(shape, where.page_table.numel(), 4)
        return model.logits(model.hidden(torch.arange(n), torch.arange(n), pool, where))

    recorded = Recorded()
    wanted = answer(built(recorded))
    save_file(recorded.tensors, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        assert_close(answer(built(MappedWeights(checkpoint))), wanted)
        with StreamedWeights(checkpoint, LateCopies(), LoadProgress(0)) as streamed:
            assert_close(answer(built(streamed)), wanted)


def test_a_size_that_does_not_divide_the_heads_is_refused() -> None:
    spec = spec_from(DUMMIES["qwen3-tiny"])
    check_division(spec, 4)
    allowed = "one of 1, 2, 4, for the model's num_attention_heads 4, num_key_value_heads 2, inter"
    with pytest.raises(InvalidConfigError, match=f"tensorParallelSize: 8 is .* allowed: {allowed}"):
        check_division(spec, 8)
