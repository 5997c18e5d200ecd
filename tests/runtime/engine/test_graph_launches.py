"""A layer of a graph is a few launches on a GPU, with windows and sinks as well. They are counted
from recordings over flashinfer's own Python, whose kernels are one launch each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from sluice_runtime.kv.pool import CPU, PagePool
from sluice_runtime.layers import attention_flashinfer, experts, stacks
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.rope import Angles, TorchStep, rotation
from sluice_runtime.model.families.registry import family_of, spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.model.weights import RandomWeights
from torch import Tensor

from tests.runtime.engine.test_graphs import Site
from tests.runtime.layers.flashinfer_backend import flashinfer_backend
from tests.runtime.layers.flashinfer_kernels import flashinfer_on_cpu
from tests.runtime.layers.test_experts import OneLaunchEach
from tests.runtime.layers.test_flashinfer_operators import compiled_on_cpu
from tests.runtime.recorded_graph import capture, kernel, launches

MOST_LAUNCHES = {"qwen3-tiny": 9, "gemma3-tiny": 11, "gpt-oss-tiny": 13, "qwen3-moe-tiny": 13}
"""By model: four products, attention, rotation with storing, two norms or four, and an activation;
with experts two products, and seven for experts."""
SIZES = {
    "gpt-oss-tiny": {"num_local_experts": 32, "num_experts_per_tok": 4},
    "qwen3-moe-tiny": {"num_experts": 128, "num_experts_per_tok": 8},
}
"""Experts of gpt-oss-20b and of Qwen3-30B-A3B."""


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
    # `flashinfer_on_cpu` has every expert compute every token.
    monkeypatch.setattr(stacks, "experts", experts.experts)
    monkeypatch.setattr(experts, "can_fuse", lambda weights: True)
    monkeypatch.setattr(experts, "kernels_on", lambda device: OneLaunchEach())
    config = {**resolve(f"dummy://{name}").config, **SIZES.get(name, {})}
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
