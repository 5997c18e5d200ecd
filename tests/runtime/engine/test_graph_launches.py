"""A layer of a graph is a few launches on a GPU, with windows and sinks as well. They are counted
from recordings over flashinfer's own Python, whose kernels are one launch each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from sluice_runtime.kv.pool import CPU, PagePool
from sluice_runtime.layers import attention_flashinfer, stacks
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.dense import Activation, HeadNorm, Multiply, linear
from sluice_runtime.layers.experts import Products, Router, SortedExperts, in_one_call
from sluice_runtime.layers.rope import Angles, TorchStep, rotation
from sluice_runtime.layers.stack import ExpertsWeights
from sluice_runtime.model.families.registry import family_of, spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.model.weights import RandomWeights
from torch import Tensor

from tests.runtime.engine.test_graphs import Site
from tests.runtime.layers.flashinfer_backend import flashinfer_backend
from tests.runtime.layers.flashinfer_kernels import flashinfer_on_cpu
from tests.runtime.layers.test_flashinfer_operators import compiled_on_cpu
from tests.runtime.recorded_graph import capture, kernel, launches

MOST_LAUNCHES = {"qwen3-tiny": 9, "gemma3-tiny": 11, "gpt-oss-tiny": 36}
"""By model: four products, attention, rotation with storing, two norms or four, and an activation;
in gpt-oss two products, and 29 for experts."""


@pytest.mark.parametrize("name", MOST_LAUNCHES)
def test_a_layer_is_few_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the difference of two and four layers. One kernel rotates and stores on a GPU."""
    two, four = (sum(launches_of(name, layers, monkeypatch).values()) for layers in (2, 4))
    assert (four - two) / 2 <= MOST_LAUNCHES[name]


def launches_of(name: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Launches of a graph's layers, half of which have windows if any have."""
    library = flashinfer_on_cpu(monkeypatch)
    compiled_on_cpu(monkeypatch)
    monkeypatch.setattr(attention_flashinfer, "storing_step", OneKernel)
    monkeypatch.setattr(stacks, "experts", grouped_experts)
    config = resolve(f"dummy://{name}").config
    if "sliding_window" in config:
        kinds = ["sliding_attention", "full_attention"] * (layers // 2)
        config = {**config, "layer_types": kinds, "sliding_window": 7}
    spec = spec_from({**config, "num_hidden_layers": layers})
    backend = flashinfer_backend(library, family_of(spec).layer_kinds(spec))
    reader = Reader(spec, RandomWeights(0, CPU), torch.bfloat16, Placement(CPU))
    site = Site(build_decoder(reader, backend), CPU, lambda: capture)
    counted: list[Counter[str]] = []

    def count(step: Callable[[], None]) -> Callable[[], None]:
        counted.append(launches(step))
        return lambda: None

    pool = site.pool()
    site.uncaptured(pool, (4,)).capture(site.parts(site.wrappers(pool).wrapper), count, (4,))
    return counted[0]


class OneKernel(TorchStep):
    """Rotates and stores in one launch."""

    def __init__(self, pool: PagePool, layout: TokenLayout, angles: Angles) -> None:
        super().__init__(pool, layout, rotation(angles, pool.shape.dtype))

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        heads = qkv.shape[1] - 2 * self.pool.shape.kv_heads
        out = qkv.new_empty(len(qkv), heads, qkv.shape[2])

        def run() -> None:
            out.copy_(super(OneKernel, self).queries(layer, qkv, head_norm))

        kernel(run)
        return out


def grouped_experts(
    weights: ExpertsWeights, activation: Activation, multiply: Multiply = linear
) -> SortedExperts:
    """One call computes all experts, as on Hopper."""
    parts = weights.experts
    gate_up, down = zip(*(part.biases for part in parts), strict=True)
    return SortedExperts(
        Router.of(weights),
        in_one_call(Products([(part.gate, part.up) for part in parts], gate_up)),
        in_one_call(Products([(part.down,) for part in parts], down)),
        activation,
    )
