"""gpt-oss: attention sinks, windows in every second layer, and experts with biases and a clamped
gate. A layer's experts are in one tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from sluice_contract.config.model_shape import Experts

from sluice_runtime.layers.adapters import AdapterBank
from sluice_runtime.layers.attention import AttentionRule
from sluice_runtime.layers.dense import ClampedSwiglu
from sluice_runtime.layers.rope import Rope
from sluice_runtime.layers.stack import ExpertsWeights, LayerShape, LayerWeights, MlpWeights
from sluice_runtime.model.config_json import Config
from sluice_runtime.model.families.family import ExpertNames, Family
from sluice_runtime.model.layer_tensors import Reader
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.parallel.group import Group

_ROPE: Final[Config] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
_SINK_VALUES: Final = 8
"""Values by which attention with a sink lengthens each gathered head."""


class _GptOss(Family):
    def spec(self, config: Config) -> ModelSpec:
        alpha, limit = config.get("swiglu_alpha", 1.702), config.get("swiglu_limit", 7.0)
        activation = ClampedSwiglu(float(alpha), float(limit))
        return replace(super().spec(config), activation=activation)

    def ropes(self, config: Config, head_dim: int) -> tuple[Rope, Rope | None]:
        if config.get("rope_parameters") is None:
            config = {**config, "rope_parameters": _ROPE}
        return super().ropes(config, head_dim)

    def layer_shape(
        self, spec: ModelSpec, group: Group, bank: AdapterBank | None = None
    ) -> LayerShape:
        shape = super().layer_shape(spec, group, bank)
        return replace(shape, rule=shape.rule or AttentionRule(None))

    def layer(self, reader: Reader, prefix: str, width: int, index: int) -> LayerWeights:
        layer, attention = super().layer(reader, prefix, width, index), f"{prefix}.self_attn"
        return replace(
            layer,
            output_bias=reader.bias(f"{attention}.o_proj", reader.spec.hidden_size),
            sinks=reader.sinks(attention, reader.spec.heads),
        )

    def expert_part(
        self, reader: Reader, part: str, names: ExpertNames, experts: Experts
    ) -> ExpertsWeights:
        """Experts in tensors [experts, in, out], where outputs of gate and up alternate."""
        count, hidden, width = experts.count, reader.spec.hidden_size, experts.width
        name = f"{part}.experts"
        gate_up = reader.matrices(f"{name}.gate_up_proj", (count, hidden, 2 * width), 2, 2)
        gate_up_biases = reader.stack(f"{name}.gate_up_proj_bias", (count, 2 * width), 1, 2)
        down = reader.matrices(f"{name}.down_proj", (count, width, hidden), 1)
        down_biases = reader.stack_bias(f"{name}.down_proj_bias", (count, hidden))
        reader.weights.settle()
        gate_up_biases = torch.cat((gate_up_biases[:, 0::2], gate_up_biases[:, 1::2]), 1)
        return ExpertsWeights(
            router=reader.table(f"{part}.router", count, hidden),
            experts=[
                MlpWeights(
                    gate=gate_up[number, 0::2],
                    up=gate_up[number, 1::2],
                    down=down[number],
                    biases=(gate_up_biases[number], down_biases[number]),
                )
                for number in range(count)
            ],
            active=experts.active,
            renormalised=experts.renormalised,
            router_bias=reader.bias(f"{part}.router", count),
        )

    def bias_values(self, spec: ModelSpec, ranks: int) -> int:
        own = spec.hidden_size + spec.heads // ranks
        return super().bias_values(spec, ranks) + own

    def expert_bias_values(self, spec: ModelSpec, experts: Experts) -> int:
        outputs = 2 * experts.width + spec.hidden_size
        return experts.count * (outputs + 1)

    def expert_step_values(self, hidden: int, width: int) -> int:
        # The activation is one kernel.
        return max(hidden + width, 3 * width)

    def gathered_values(self, values: int, head_dim: int) -> int:
        return values + values * (head_dim + _SINK_VALUES) // head_dim


GPT_OSS: Final = _GptOss(
    qkv_bias=True,
    experts=ExpertNames(),
    whole_every=2,
    sinks=True,
    native_lacks="sliding windows and attention sinks",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 15e4, "sliding_window": 128},
    features={"attention_bias": (True,)},
)
