"""A loaded model holds each of its numbers once, as the plan of a GPU's memory says."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from sluice_runtime.engine.sizing.gpu_plan import ModelBytes
from sluice_runtime.layers import experts
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder, load_model
from sluice_runtime.parallel.group import Solo
from torch import Tensor

from tests.runtime.engine.sizing.test_gpu_plan import (
    META,
    MODELS,
    WITH_EXPERTS,
    MetaWeights,
    of_two_layers,
)

# See `test_gpu_plan`.
pytestmark = pytest.mark.xdist_group("transformers")

LITTLE = 1.01
"""Norms of heads, of which each head has a copy, and frequencies."""


def held_bytes(owner: object) -> int:
    """Of all tensors that `owner` reaches; views of the same memory count once."""
    sizes: dict[int, int] = {}
    for tensor in _tensors(owner):
        if tensor.is_mkldnn:  # has no storage that torch shows
            sizes[id(tensor)] = tensor.nbytes
        else:
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def _tensors(owner: object) -> Iterator[Tensor]:
    known: dict[int, object] = {}
    waiting: list[Any] = [owner]
    while waiting:
        item = waiting.pop()
        if id(item) in known or isinstance(item, type | ModuleType):
            continue
        known[id(item)] = item
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, FunctionType):  # its globals are nobody's
            waiting += [*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__]
        else:
            waiting += gc.get_referents(item)


@pytest.mark.parametrize("grouped", [True, False], ids=["in one call", "every expert"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["Mixtral-8x7B", "gpt-oss-20b", WITH_EXPERTS, "Llama-3-8B"])
def test_on_a_gpu(name: str, ranks: int, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "can_group", lambda weight: grouped)
    model = of_two_layers(MODELS[name][0])
    placement = Placement(META, Solo(0, ranks))
    decoder = build_decoder(Reader(model, MetaWeights(), torch.bfloat16, placement), TORCH)
    plan = ModelBytes(model, 2, ranks).weights
    assert plan <= held_bytes(decoder) <= LITTLE * plan


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
