"""Quantised checkpoints are read as the numbers that they mean, whole or in parts, or refused by
name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sluice_contract.config.model_shape import ModelShape
from sluice_contract.config.packing import packing_of
from sluice_kernels.packed import PackedMatrix, dequantised, joined
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.load_progress import LoadProgress
from sluice_runtime.model.mxfp4 import Mxfp4
from sluice_runtime.model.quantisation_config import format_from
from sluice_runtime.model.quantised import QuantisedWeights
from sluice_runtime.model.shard import Shard, Split, TensorPart
from sluice_runtime.model.staging import Wait
from sluice_runtime.model.streamed_weights import StreamedWeights
from sluice_runtime.model.weights import Checkpoint, MappedWeights, WeightSource
from torch import Tensor

from tests.pairwise import matrix
from tests.runtime.model.quantised_checkpoints import (
    SCHEMES,
    awq,
    mxfp4,
)
from tests.runtime.model.test_streamed_weights import LateCopies

NAME = "layer.q_proj"
OUT, WIDTH = 80, 96
Change = Callable[[dict[str, Tensor]], object]


def write(folder: Path, scheme: str, change: Change | None = None) -> Tensor:
    """One matrix in the scheme; what it means."""
    stored, meant = SCHEMES[scheme][1](
        torch.randn(OUT, WIDTH, generator=torch.Generator().manual_seed(3))
    )
    if change:
        change(stored)
    tensors = {f"{NAME}.{part}": tensor for part, tensor in stored.items()}
    save_file(tensors, folder / "model.safetensors")
    return meant


def read(
    source: WeightSource, checkpoint: Checkpoint, scheme: str, shard: Shard, split: Split
) -> Tensor:
    stored_as = format_from({"quantization_config": SCHEMES[scheme][0]})
    assert stored_as is not None
    weights = QuantisedWeights(checkpoint, source, stored_as)
    part = weights.read(f"{NAME}.weight", shard.part((OUT, WIDTH), split), torch.float32)
    weights.settle()
    assert not weights.unread()
    return part


# Each scheme is cut both ways, by some number of ranks.
CUTS = matrix(
    list(product(SCHEMES, [Split.ROWS, Split.COLUMNS])), [1, 2, 3, 4], others=pytest.mark.full,
    together=1,
)  # fmt: skip


@pytest.mark.parametrize(("cut", "ranks"), CUTS, ids=str)
def test_the_parts_of_all_ranks_joined_are_the_numbers_that_are_meant(
    tmp_path: Path, cut: tuple[str, Split], ranks: int
) -> None:
    scheme, split = cut
    meant = write(tmp_path, scheme)
    with Checkpoint(tmp_path) as checkpoint:
        parts = [
            read(MappedWeights(checkpoint), checkpoint, scheme, Shard(rank, ranks), split)
            for rank in range(ranks)
        ]
    assert torch.equal(torch.cat(parts, 0 if split is Split.ROWS else 1), meant)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_with_copies_of_a_key_head_read_the_same_part(tmp_path: Path, scheme: str) -> None:
    meant = write(tmp_path, scheme)
    with Checkpoint(tmp_path) as checkpoint:
        parts = [
            read(MappedWeights(checkpoint), checkpoint, scheme, Shard(rank, 8, 2), Split.KEYS)
            for rank in range(8)
        ]
    assert torch.equal(torch.cat(parts[::2]), torch.cat(parts[1::2]))
    assert torch.equal(torch.cat(parts[::2]), meant)


@pytest.mark.parametrize("scheme", ["fp8-blocks", "compressed-channel", "awq", "gptq"])
def test_streamed_as_to_a_device(tmp_path: Path, scheme: str) -> None:
    meant = write(tmp_path, scheme)
    with (
        Checkpoint(tmp_path) as checkpoint,
        StreamedWeights(checkpoint, LateCopies(), LoadProgress(0), 2048) as streamed,
    ):
        part = read(streamed, checkpoint, scheme, Shard(1, 2), Split.COLUMNS)
    assert torch.equal(part, meant[:, WIDTH // 2 :])


WHOLE_GROUPS = {
    "fp8": 1,
    "fp8-small-blocks": 3,
    "compressed-channel": 1,
    "compressed-block": 3,
    "modelopt": 1,
    "outputs": 1,
    "awq": 3,
    "awq-one-group": 1,
    "gptq-one-group": 1,
    "gptq": 3,
    "gptq-v2": 3,
    "gptq-no-zeros": 3,
}
"""Schemes of which matrices stay packed, with the groups of an output."""


def read_packed(folder: Path, scheme: str, part: TensorPart, *, streamed: bool) -> PackedMatrix:
    stored_as = format_from({"quantization_config": SCHEMES[scheme][0]})
    assert stored_as is not None
    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint(folder))
        source: WeightSource = MappedWeights(checkpoint)
        if streamed:
            own = StreamedWeights(checkpoint, LateCopies(), LoadProgress(0), 2048)
            source = stack.enter_context(own)
        weights = QuantisedWeights(checkpoint, source, stored_as)
        matrix = weights.read_packed(f"{NAME}.weight", part)
        weights.settle()
        assert matrix is not None
        assert not weights.unread()
        return matrix


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("scheme", WHOLE_GROUPS)
def test_packed_parts_joined_are_the_numbers_that_are_meant(
    tmp_path: Path, scheme: str, streamed: bool
) -> None:
    meant = write(tmp_path, scheme)
    for ranks, split in (
        *((1, Split.ROWS), (2, Split.ROWS), (3, Split.ROWS)),
        *((3, Split.COLUMNS), (2, Split.DOWN)),  # of three groups
    ):
        shards = [Shard(rank, ranks, unit=32) for rank in range(ranks)]
        parts = [
            read_packed(tmp_path, scheme, shard.part((OUT, WIDTH), split), streamed=streamed)
            for shard in shards
        ]
        dim = int(split.is_by_inputs)
        assert torch.equal(torch.cat([dequantised(part) for part in parts], dim), meant)


@pytest.mark.parametrize("scheme", WHOLE_GROUPS)
def test_a_packed_matrix_takes_the_bytes_that_config_json_says(tmp_path: Path, scheme: str) -> None:
    write(tmp_path, scheme)
    matrix = read_packed(tmp_path, scheme, Shard().part((OUT, WIDTH), Split.ROWS), streamed=True)
    groups = 1 if matrix.scales is None else matrix.scales.shape[1]
    assert groups == WHOLE_GROUPS[scheme]
    config = {"quantization_config": SCHEMES[scheme][0], "dtype": "float16"}
    packing = packing_of(config, shape_with_inputs(WIDTH))
    assert packing is not None
    held = sum(part.nbytes for part in matrix.parts)
    assert packing.matrix_bytes(OUT, WIDTH) == held


def test_zeros_of_gptq_reach_16(tmp_path: Path) -> None:
    """Its first layout stores them reduced by one."""

    def change(stored: dict[str, Tensor]) -> None:
        stored["qweight"].zero_()
        stored["scales"].fill_(1)
        stored["qzeros"].fill_(-1)  # all bits

    write(tmp_path, "gptq", change)
    whole = Shard().part((OUT, WIDTH), Split.ROWS)
    meant = torch.full((OUT, WIDTH), -16.0)
    assert torch.equal(dequantised(read_packed(tmp_path, "gptq", whole, streamed=False)), meant)
    with Checkpoint(tmp_path) as checkpoint:
        source = MappedWeights(checkpoint)
        assert torch.equal(read(source, checkpoint, "gptq", Shard(), Split.ROWS), meant)


def test_matrices_with_and_without_stored_zeros_are_joined(tmp_path: Path) -> None:
    parts, meant = [], []
    for scheme in ("gptq", "gptq-no-zeros"):
        meant.append(write(tmp_path, scheme))
        whole = Shard().part((OUT, WIDTH), Split.ROWS)
        parts.append(read_packed(tmp_path, scheme, whole, streamed=False))
    assert torch.equal(dequantised(joined(parts)), torch.cat(meant))


def shape_with_inputs(width: int) -> ModelShape:
    return ModelShape(8, width, width, 1, width // 32, 1, 32, 64, tied_embeddings=True)


@pytest.mark.parametrize("scheme", ["fp8-blocks", "fp8-large-blocks", "awq-narrow"])
def test_groups_that_products_do_not_read_have_no_packing(scheme: str) -> None:
    config = {"quantization_config": SCHEMES[scheme][0]}
    assert packing_of(config, shape_with_inputs(WIDTH)) is None


def test_a_part_that_cuts_a_group_cannot_stay_packed(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    part = Shard(1, 2).part((OUT, WIDTH), Split.COLUMNS)
    with pytest.raises(ModelLoadError, match=r"inputs 48 to 96 of layer\.q_proj are not whole"):
        read_packed(tmp_path, "gptq", part, streamed=False)


def test_a_matrix_that_is_not_quantised_is_not_packed(tmp_path: Path) -> None:
    save_file({f"{NAME}.weight": torch.randn(OUT, WIDTH)}, tmp_path / "model.safetensors")
    stored_as = format_from({"quantization_config": SCHEMES["fp8"][0]})
    assert stored_as is not None
    with Checkpoint(tmp_path) as checkpoint:
        weights = QuantisedWeights(checkpoint, MappedWeights(checkpoint), stored_as)
        whole = Shard().part((OUT, WIDTH), Split.ROWS)
        assert weights.read_packed(f"{NAME}.weight", whole) is None


EXPERTS, INNER, OUTPUTS = 3, 96, 20
STACK = "layer.experts.down_proj"


def read_stack(folder: Path, shard: Shard, dim: int, *, streamed: bool = False) -> Tensor:
    stored_as = format_from({"quantization_config": {"quant_method": "mxfp4"}})
    assert stored_as is not None
    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint(folder))
        source: WeightSource = MappedWeights(checkpoint)
        if streamed:
            own = StreamedWeights(checkpoint, LateCopies(), LoadProgress(0), 128)
            source = stack.enter_context(own)
        weights = QuantisedWeights(checkpoint, source, stored_as)
        part = weights.read(STACK, shard.inner((EXPERTS, INNER, OUTPUTS), dim), torch.float32)
        weights.settle()
        assert not weights.unread()
        return part


@pytest.fixture
def stack_of(tmp_path: Path) -> Callable[..., Tensor]:
    """Writes experts in MXFP4; what they mean."""

    def write_stack(inner: int = INNER) -> Tensor:
        drawn = torch.randn(EXPERTS, inner, OUTPUTS, generator=torch.Generator().manual_seed(3))
        stored, meant = mxfp4(drawn)
        tensors = {f"{STACK}{part}": tensor.contiguous() for part, tensor in stored.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        return meant

    return write_stack


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_parts_of_stacked_experts_joined_are_the_numbers_that_are_meant(
    tmp_path: Path, stack_of: Callable[..., Tensor], ranks: int, dim: int, streamed: bool
) -> None:
    """Two ranks cut a block of 32 inputs in two."""
    meant = stack_of()
    parts = [
        read_stack(tmp_path, Shard(rank, ranks), dim, streamed=streamed) for rank in range(ranks)
    ]
    assert torch.equal(torch.cat(parts, dim), meant)


@pytest.mark.parametrize("dim", [1, 2])
def test_the_parts_of_packed_experts_joined_are_the_numbers_that_are_meant(
    tmp_path: Path, stack_of: Callable[..., Tensor], dim: int
) -> None:
    meant = stack_of()
    parts = []
    with Checkpoint(tmp_path) as checkpoint:
        for rank in range(3 if dim == 1 else 4):
            part = Shard(rank, 3 if dim == 1 else 4).inner((EXPERTS, INNER, OUTPUTS), dim)
            weights = QuantisedWeights(checkpoint, MappedWeights(checkpoint), Mxfp4())
            matrix = weights.read_packed(STACK, part)
            weights.settle()
            assert matrix is not None
            parts.append(dequantised(matrix).transpose(1, 2))
    assert torch.equal(torch.cat(parts, dim), meant)


class CountedCopies(LateCopies):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def begin(self, rows: Tensor, columns: slice, target: Tensor) -> Wait:
        self.count += 1
        return super().begin(rows, columns, target)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dim", [1, 2])
def test_stacked_experts_are_read_in_whole_buffers(tmp_path: Path, ranks: int, dim: int) -> None:
    """Not by output, of which gpt-oss has 92,160 in a layer."""
    experts, width, out = 4, 512, 96
    blocks = torch.randint(256, (experts, out, width // 32, 16), dtype=torch.uint8)
    scales = torch.full((experts, out, width // 32), 127, dtype=torch.uint8)
    save_file(
        {f"{STACK}_blocks": blocks, f"{STACK}_scales": scales}, tmp_path / "model.safetensors"
    )
    part, copies = Shard(ranks - 1, ranks).inner((experts, width, out), dim), CountedCopies()
    buffer = blocks.nbytes // 4
    with (
        Checkpoint(tmp_path) as checkpoint,
        StreamedWeights(checkpoint, copies, LoadProgress(0), buffer) as streamed,
    ):
        weights = QuantisedWeights(checkpoint, streamed, Mxfp4())
        weights.read(STACK, part, torch.float32)
        weights.settle()
    assert copies.count <= 4 + 1


@pytest.mark.process
def test_mxfp4_means_what_transformers_makes_of_it(
    stack_of: Callable[..., Tensor], tmp_path: Path
) -> None:
    """Importing it takes seconds."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    meant = stack_of()
    stored = load_file(tmp_path / "model.safetensors")
    parts = stored[f"{STACK}_blocks"], stored[f"{STACK}_scales"]
    made = convert_moe_packed_tensors(*parts, dtype=torch.float32)
    assert torch.equal(made, meant)


def test_experts_in_mxfp4_have_whole_blocks(
    tmp_path: Path, stack_of: Callable[..., Tensor]
) -> None:
    stack_of()
    stored_as = format_from({"quantization_config": {"quant_method": "mxfp4"}})
    assert stored_as is not None
    with Checkpoint(tmp_path) as checkpoint:
        weights = QuantisedWeights(checkpoint, MappedWeights(checkpoint), stored_as)
        with pytest.raises(ModelLoadError, match=r"40 inputs of layer\.experts\.down_proj"):
            weights.read(STACK, Shard().inner((EXPERTS, 40, OUTPUTS), 1), torch.float32)


def refusal(folder: Path, scheme: str, change: Change) -> str:
    write(folder, scheme, change)
    with Checkpoint(folder) as checkpoint, pytest.raises(ModelLoadError) as caught:
        read(MappedWeights(checkpoint), checkpoint, scheme, Shard(), Split.ROWS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "missing", "shape"),
    [
        ("fp8", "weight_scale", [OUT, 1]),
        ("fp8-blocks", "weight_scale_inv", [2, 3]),
        ("compressed-channel", "weight_scale", [OUT, 1]),
        ("awq", "qzeros", [3, 10]),
        ("awq", "qweight", [WIDTH, 10]),
        ("gptq", "scales", [3, OUT]),
        ("gptq-v2", "qzeros", [3, 10]),
    ],
)
def test_a_missing_part_is_named(
    tmp_path: Path, scheme: str, missing: str, shape: list[int]
) -> None:
    line = refusal(tmp_path, scheme, lambda stored: stored.pop(missing))
    assert f"tensor {NAME}.{missing} is missing; wanted shape {shape}" in line


@pytest.mark.parametrize(
    ("scheme", "part", "shape"),
    [
        ("fp8-blocks", "weight_scale_inv", (3, 2)),
        ("fp8", "weight_scale", (7,)),
        ("compressed-channel", "weight_scale", (WIDTH, 1)),
        ("awq", "scales", (6, OUT)),
        ("gptq", "qweight", (WIDTH, 10)),
    ],
)
def test_a_shape_that_does_not_fit_is_named(
    tmp_path: Path, scheme: str, part: str, shape: tuple[int, ...]
) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        stored[part] = torch.ones(shape).to(stored[part].dtype)

    line = refusal(tmp_path, scheme, change)
    assert f"tensor {NAME}.{part} has shape {list(shape)}" in line


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, "gptq", lambda stored: stored["g_idx"].add_(1))
    assert f"{NAME}.g_idx" in line
    assert "desc_act" in line


def test_numbers_of_another_type_are_refused(tmp_path: Path) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        stored["qweight"] = stored["qweight"].long()

    assert "type I64; allowed: I32" in refusal(tmp_path, "awq", change)


def test_groups_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    settings = format_from({"quantization_config": awq(40)})
    assert settings is not None
    with Checkpoint(tmp_path) as checkpoint:
        weights = QuantisedWeights(checkpoint, MappedWeights(checkpoint), settings)
        with pytest.raises(ModelLoadError, match=f"group_size: 40 does not fit {NAME}"):
            weights.read(f"{NAME}.weight", Shard().part((OUT, WIDTH), Split.ROWS), torch.float32)


@pytest.mark.parametrize("scheme", ["fp8", "awq"])
def test_what_is_not_quantised_is_read_as_it_is(tmp_path: Path, scheme: str) -> None:
    """Routers and heads, whether a list of the configuration names them or not."""
    plain = torch.randn(OUT, WIDTH)
    save_file({f"{NAME}.weight": plain}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        assert torch.equal(
            read(MappedWeights(checkpoint), checkpoint, scheme, Shard(), Split.ROWS), plain
        )
