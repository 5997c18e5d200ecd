"""The registry of architectures: how each differs from the common decoder, and how its checkpoints
spell that. Knows no file and no value of a config.json but what missing keys mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluice_runtime.layers.dense import Activation, ClampedSwiglu, gelu_and_multiply
from sluice_runtime.model.config_json import Config

_ROPES: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class NormNames:
    """Names of a layer's norms in checkpoints; None: there is none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def count(self) -> int:
        names = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return sum(name is not None for name in names)


@dataclass(frozen=True)
class ExpertNames:
    """In checkpoints: of the part with experts, and of an expert's matrices."""

    part: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True)
class Variant:
    """How one architecture differs from the common decoder."""

    qk_norm: bool = False
    """RMS norm over each head of queries and keys before the rotation."""
    qkv_bias: bool = False
    """Queries, keys and values have biases."""
    experts: bool = False
    """Layers have a feed-forward part of experts."""
    expert_names: ExpertNames = ExpertNames()
    norms: NormNames = NormNames()
    whole_qk_norm: bool = False
    """RMS norm over all heads of queries at once, and over those of keys, before the rotation."""
    bias_by_key: bool = False
    """attention_bias says whether queries, keys and values have biases; outputs never have."""
    partial_rotary: bool = False
    """partial_rotary_factor says which share of a head is rotated."""
    interleaved: bool = False
    """Neighbours are a pair of the rotation."""
    fused_qkv: bool = False
    """The checkpoint has queries, keys and values in one matrix."""
    fused_gate_up: bool = False
    """The checkpoint has both inputs of the gated part in one matrix."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Meaning of missing keys that are no sizes: those are in the contract's `DEFAULTS`."""
    output_bias: bool = False
    """What attention gives out has a bias."""
    sinks: bool = False
    """Heads have attention sinks."""
    fused_experts: bool = False
    """All experts of a layer are in one tensor, gate and up in turns; they and the router have
    biases."""
    whole_every: int | None = None
    """Each `whole_every`-th layer attends to all tokens, the others to those in a window."""
    ropes: tuple[str, ...] = _ROPES
    """Allowed types: those that transformers computes for the family."""
    rope: Config = field(default_factory=dict)
    """What missing rope_parameters and rope_scaling mean."""
    activation: Callable[[Config], Activation] | None = None
    """Function of gate and up; None: silu(gate) x up."""
    offset_norms: bool = False
    """Norms are computed in float32; checkpoints have their weights less 1."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by sqrt(hidden_size)."""
    scaled_queries: bool = False
    """Scores are divided by sqrt(query_pre_attn_scalar), not by sqrt(head_dim)."""
    window_rope: bool = False
    """Layers with a window have a rope of their own."""
    text_part: bool = False
    """The language model is a part of the checkpoint, which has a config in text_config and tensors
    with a prefix (`TextPart`). The other parts are not read."""
    features: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """What of `FEATURES` is otherwise."""


_GLM: Final = Variant(
    bias_by_key=True,
    partial_rotary=True,
    interleaved=True,
    fused_gate_up=True,
    defaults={
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07,
    },
)

_GEMMA3: Final = Variant(
    qk_norm=True,
    norms=NormNames(
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
    ),
    offset_norms=True,
    scaled_embedding=True,
    scaled_queries=True,
    whole_every=6,
    window_rope=True,
    ropes=("default", "linear", "dynamic", "llama3", "yarn"),
    activation=lambda _: gelu_and_multiply,
    defaults={
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
        "sliding_window": 4096,
    },
    features={
        "hidden_act": ("gelu_pytorch_tanh",),
        "hidden_activation": ("gelu_pytorch_tanh",),
    },
)

ARCHITECTURES: Final[Mapping[str, Variant]] = {
    "Qwen3ForCausalLM": Variant(qk_norm=True),
    "Qwen2ForCausalLM": Variant(qkv_bias=True),
    "Qwen3MoeForCausalLM": Variant(qk_norm=True, experts=True),
    "LlamaForCausalLM": Variant(),
    "MistralForCausalLM": Variant(),
    "MixtralForCausalLM": Variant(
        experts=True,
        expert_names=ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
    ),
    "Phi3ForCausalLM": Variant(
        partial_rotary=True,
        fused_qkv=True,
        fused_gate_up=True,
        ropes=("default", "longrope"),
        defaults={"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, text_part=True),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": replace(
        _GLM,
        norms=NormNames(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
    "Olmo2ForCausalLM": Variant(
        norms=NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        whole_qk_norm=True,
        defaults={"rms_norm_eps": 1e-5},
    ),
    "GptOssForCausalLM": Variant(
        qkv_bias=True,
        experts=True,
        output_bias=True,
        sinks=True,
        fused_experts=True,
        whole_every=2,
        rope={
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        activation=lambda config: ClampedSwiglu(
            float(config.get("swiglu_alpha", 1.702)), float(config.get("swiglu_limit", 7.0))
        ),
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 15e4,
            "sliding_window": 128,
        },
        features={"attention_bias": (True,)},
    ),
}
"""Variants by the name in config.json's `architectures`."""
