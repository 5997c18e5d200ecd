"""A loaded model holds each of its numbers once, as the plan of a GPU's memory says."""

from __future__ import annotations

import pytest
import torch
from sluice_contract.config.packing import Packing
from sluice_kernels.packed import Kind, PackedMatrix
from sluice_runtime.engine.sizing.gpu_plan import ModelBytes
from sluice_runtime.layers import experts
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.model import layer_tensors
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder, load_model
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.parallel.group import Solo
from torch import Tensor

from tests.published_configs import CONFIGS
from tests.runtime.engine.sizing.test_gpu_plan import (
    META,
    MODELS,
    WITH_EXPERTS,
    MetaWeights,
    of_two_layers,
)
from tests.runtime.model.held import held_bytes

# See `test_gpu_plan`.
pytestmark = pytest.mark.xdist_group("transformers")

LITTLE = 1.01
"""Norms of heads, of which each head has a copy, and frequencies."""


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "every expert"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["Mixtral-8x7B", "gpt-oss-20b", WITH_EXPERTS, "Llama-3-8B"])
def test_on_a_gpu(name: str, ranks: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "can_fuse", lambda weights: fused)
    model = of_two_layers(MODELS[name][0])
    placement = Placement(META, Solo(0, ranks))
    decoder = build_decoder(Reader(model, MetaWeights(), torch.bfloat16, placement), TORCH)
    plan = ModelBytes(model, 2, ranks).weights
    assert plan <= held_bytes(decoder) <= LITTLE * plan


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("repository", CONFIGS)
def test_packed_on_a_gpu(repository: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank has most: of gpt-oss and Qwen3-30B-A3B-FP8, four have unequal parts."""
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: True)
    model = of_two_layers(spec_from(CONFIGS[repository]))
    packing = model.packing
    assert packing is not None

    def packed(name: str, part: TensorPart) -> PackedMatrix | None:
        is_expert = len(part.shape) == 3
        if packing.experts_only and not is_expert:
            return None
        *experts, first, second = part.shape
        out, width = (second, first) if is_expert else (first, second)
        return packed_on_meta(packing, (*experts, out), width)

    placement = Placement(META, Solo(0, ranks))
    reader = Reader(model, MetaWeights(), torch.bfloat16, placement, packed)
    plan = ModelBytes(model, 2, ranks, packed=True).weights
    assert plan <= held_bytes(build_decoder(reader, TORCH)) <= LITTLE * plan


def packed_on_meta(packing: Packing, outs: tuple[int, ...], width: int) -> PackedMatrix:
    def like(size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((*outs, size), dtype=dtype, device=META)

    byte, groups = torch.uint8, width // packing.group if packing.group else 1
    numbers = like(width * packing.bits // 8, byte)
    if packing.bits == 8:
        return PackedMatrix(Kind.FP8, numbers, like(groups, torch.float32))
    if packing.experts_only:
        return PackedMatrix(Kind.MXFP4, numbers, like(groups, byte))
    return PackedMatrix(Kind.INT4, numbers, like(groups, torch.float16), like(groups, byte))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["mixtral-tiny", "gpt-oss-tiny", "qwen3-moe-tiny", "qwen3-tiny"])
def test_on_a_cpu(name: str, dtype: str) -> None:
    decoder = load_model(resolve(f"dummy://{name}"), dtype, 0)
    spec, itemsize = decoder.spec, decoder.dtype.itemsize
    plan = ModelBytes(spec, itemsize).weights
    is_packed = spec.tied_embeddings and dtype == "bfloat16"
    head = spec.vocabulary_size * spec.hidden_size * itemsize if is_packed else 0
    assert plan <= held_bytes(decoder) <= LITTLE * plan + head


def test_the_plan_has_the_copies_of_key_heads_that_advice_counts() -> None:
    model = MODELS["GLM-4-9B-0414"][0]
    own, copied = (ranks * ModelBytes(model, 2, ranks).weights for ranks in (2, 8))
    norms = 6 * 2 * 5 * model.layers * model.hidden_size
    assert 0 < copied - own - 2 * model.copied_weights(8) <= norms
    assert model.copied_weights(2) == 0
