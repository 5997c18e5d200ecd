"""Granite 3: Llama with factors on embeddings, scores and logits, and on the outputs of parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from sluice_runtime.layers.rope import Rope
from sluice_runtime.model.config_json import Config, positive_number
from sluice_runtime.model.families.family import Family
from sluice_runtime.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class _GraniteSpec(ModelSpec):
    logits_scaling: float
    """Divisor of logits."""


class _Granite(Family):
    def spec(self, config: Config) -> ModelSpec:
        """Spec that divides the residual stream by residual_multiplier, instead of multiplying what
        is added to it. After a norm whose epsilon is divided by the multiplier's square, both give
        equal results, and weights and adapters stay as stored."""
        spec, residual = super().spec(config), positive_number(config, "residual_multiplier")
        own = {
            "norm_eps": spec.norm_eps / residual**2,
            "embedding_scale": positive_number(config, "embedding_multiplier") / residual,
            "logits_scaling": positive_number(config, "logits_scaling"),
        }
        return _GraniteSpec(**vars(spec) | own)

    def ropes(self, config: Config, head_dim: int) -> tuple[Rope, None]:
        """Rope that applies the square root of the factor on scores to queries, and again to
        keys."""
        rope, _ = super().ropes(config, head_dim)
        scores = positive_number(config, "attention_multiplier") * math.sqrt(head_dim)
        return replace(rope, magnitude=math.sqrt(scores)), None

    def last_norm(self, spec: ModelSpec, stored: Tensor) -> Tensor:
        assert isinstance(spec, _GraniteSpec)
        return stored / spec.logits_scaling


GRANITE: Final = _Granite(
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
    },
)
