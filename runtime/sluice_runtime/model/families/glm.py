"""GLM-4: config.json says whether there are biases; the rotation pairs neighbouring dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sluice_runtime.layers.rope import Rope
from sluice_runtime.model.config_json import Config
from sluice_runtime.model.families.family import Family, NormNames
from sluice_runtime.model.spec import ModelSpec


class _Glm(Family):
    def spec(self, config: Config) -> ModelSpec:
        return replace(super().spec(config), qkv_bias=bool(config["attention_bias"]))

    def ropes(self, config: Config, head_dim: int) -> tuple[Rope, None]:
        rope, _ = super().ropes(config, head_dim)
        return replace(rope, interleaved=True), None


GLM: Final = _Glm(
    partial_rotary=True,
    joined_gate_up=True,
    defaults={"attention_bias": True, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07},
    features={"attention_bias": (True, False)},
)
GLM4: Final = replace(
    GLM, norms=NormNames(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
)
