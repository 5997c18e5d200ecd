"""Reads config.json into a ModelSpec: variants are data, what is not implemented is refused.

Knows no tensor and no file but the parsed config. Both spellings of transformers are read:
`rope_theta` + `rope_scaling` + `torch_dtype`, and `rope_parameters` + `dtype`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.rope import Llama3Scaling, LongRope, Rope
from sluice_runtime.model.quantised import Fp8, Int4, format_from

Config = Mapping[str, Any]


@dataclass(frozen=True)
class NormNames:
    """Of a layer's norms in checkpoints; None: there is none."""

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
    head_dim: int | None = None
    """What a missing head_dim means; None: hidden_size / num_attention_heads."""
    window_tokens: int | None = None
    """What a missing sliding_window means, where the key alone turns windows on."""
    windowed: bool = False
    """The key sliding_window alone turns windows on."""
    experts: bool = False
    """Layers have a feed-forward part of experts."""
    expert_names: ExpertNames = ExpertNames()
    expert_width: str = "moe_intermediate_size"
    """The key of the width of an expert."""
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
    missing: Mapping[str, Any] = field(default_factory=dict)
    """What keys mean that config.json leaves out."""


_GLM: Final = Variant(
    bias_by_key=True,
    partial_rotary=True,
    interleaved=True,
    fused_gate_up=True,
    missing={
        "attention_bias": True,
        "head_dim": 128,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07,
    },
)

ARCHITECTURES: Final[Mapping[str, Variant]] = {
    "Qwen3ForCausalLM": Variant(qk_norm=True, head_dim=128),
    "Qwen2ForCausalLM": Variant(qkv_bias=True),
    "Qwen3MoeForCausalLM": Variant(qk_norm=True, experts=True),
    "LlamaForCausalLM": Variant(),
    "MistralForCausalLM": Variant(window_tokens=4096, windowed=True),
    "MixtralForCausalLM": Variant(
        windowed=True,
        experts=True,
        expert_names=ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
        expert_width="intermediate_size",
        missing={
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
    ),
    "Phi3ForCausalLM": Variant(
        windowed=True,
        partial_rotary=True,
        fused_qkv=True,
        fused_gate_up=True,
        missing={"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": replace(
        _GLM,
        norms=NormNames(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
    "Olmo2ForCausalLM": Variant(
        norms=NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        whole_qk_norm=True,
        missing={"rms_norm_eps": 1e-5},
    ),
}
"""By the name in config.json's `architectures`."""

_EXPERTS: Final = ("num_experts", "num_local_experts")
"""Both spellings of their number."""
_BIAS: Final = ("attention_bias",)
DTYPES: Final = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Experts:
    """Of those layers whose feed-forward part is made of them."""

    layers: frozenset[int]
    count: int
    active: int
    """Of a token."""
    width: int
    renormalised: bool
    """Whether the shares of a token's experts add up to 1."""


@dataclass(frozen=True)
class ModelSpec:
    """Everything about a model but its weights."""

    architecture: str
    variant: Variant
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    context_length_tokens: int
    """At most the sliding window, within which attention is full attention."""
    tied_embeddings: bool
    dtype: str
    """The checkpoint's."""
    experts: Experts | None = None
    quantised: Fp8 | Int4 | None = None
    """How the files hold matrices; None: as numbers of a type of `DTYPES`."""

    @property
    def shared_sizes(self) -> Mapping[str, int]:
        """What ranks divide among them, by name."""
        width = {self.variant.expert_width: self.experts.width} if self.experts else {}
        return {
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate_size,
        } | width

    def serving(self, context_tokens: int) -> ModelSpec:
        """The same for contexts of at most so many tokens: see `LongRope`."""
        scaling = self.rope.scaling
        if not isinstance(scaling, LongRope):
            return self
        rope = replace(self.rope, scaling=replace(scaling, context_tokens=context_tokens))
        return replace(self, rope=rope)


def spec_from(config: Config) -> ModelSpec:
    """The spec that config.json describes.

    Raises:
        ModelLoadError: names the key, its value and what is allowed.
    """
    architecture = _architecture(config)
    variant = ARCHITECTURES[architecture]
    config = {**variant.missing, **config}
    _refuse_unknown_features(config, variant)
    if variant.bias_by_key:
        variant = replace(variant, qkv_bias=bool(config["attention_bias"]))
    window = _window(config, variant)
    heads, hidden = whole_number(config, "num_attention_heads"), whole_number(config, "hidden_size")
    layers = whole_number(config, "num_hidden_layers")
    head_dim = whole_number(config, "head_dim", variant.head_dim or hidden // heads)
    context = min(whole_number(config, "max_position_embeddings"), window or sys.maxsize)
    spec = ModelSpec(
        architecture=architecture,
        variant=variant,
        vocabulary_size=whole_number(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=whole_number(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=whole_number(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config, variant, head_dim),
        context_length_tokens=context,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=_dtype(config),
        experts=_experts(config, layers, variant) if variant.experts else None,
        quantised=format_from(config),
    ).serving(context)
    if heads % spec.kv_heads:
        raise refused("num_key_value_heads", spec.kv_heads, f"a divisor of {heads} heads")
    return spec


def refused(key: str, value: object, allowed: str) -> ModelLoadError:
    return ModelLoadError(f"config.json: {key}: {value!r} is not allowed; allowed: {allowed}")


def _architecture(config: Config) -> str:
    named = config.get("architectures")
    known = named[0] if isinstance(named, list) and len(named) == 1 else None
    if known not in ARCHITECTURES:
        raise refused("architectures", named, "one of " + ", ".join(ARCHITECTURES))
    return str(known)


def whole_number(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise refused(key, value, "a whole number from 1")
    return value


def _dtype(config: Config) -> str:
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    if value not in DTYPES:
        raise refused("dtype", value, ", ".join(DTYPES))
    return str(value)


FEATURES: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("hidden_act", ("silu",)),
    ("attention_bias", (False,)),
    ("mlp_bias", (False,)),
    ("use_sliding_window", (False,)),
    ("pretraining_tp", (1,)),
    ("num_experts", (0,)),
    ("num_local_experts", (0,)),
    ("attn_logit_softcapping", ()),
    ("final_logit_softcapping", ()),
    ("is_encoder_decoder", (False,)),
)
"""Keys that change what a model computes, with the values that are implemented; None always is."""


def _refuse_unknown_features(config: Config, variant: Variant) -> None:
    read = (*(_EXPERTS if variant.experts else ()), *(_BIAS if variant.bias_by_key else ()))
    for key, allowed in FEATURES:
        value = None if key in read else config.get(key)
        if value is not None and value not in allowed:
            raise refused(key, value, " or ".join(["absent", *map(repr, allowed)]))
    for kind in config.get("layer_types") or ():
        if kind != "full_attention":
            raise refused("layer_types", kind, "'full_attention'")


def _window(config: Config, variant: Variant) -> int | None:
    """Tokens that the last one attends to, itself included; None: all before it."""
    window = config.get("sliding_window", variant.window_tokens)
    if window is None:
        return None
    if variant.windowed:
        return whole_number(config, "sliding_window", window)
    if config.get("use_sliding_window") is not False:
        raise refused("sliding_window", window, "absent, null, or with use_sliding_window false")
    return None


def _experts(config: Config, layers: int, variant: Variant) -> Experts:
    key = next((key for key in _EXPERTS if key in config), _EXPERTS[0])
    count, active = whole_number(config, key), whole_number(config, "num_experts_per_tok")
    if active > count:
        raise refused("num_experts_per_tok", active, f"at most {count} ({key})")
    step, dense = (
        whole_number(config, "decoder_sparse_step", 1),
        config.get("mlp_only_layers") or [],
    )
    if not isinstance(dense, list):
        raise refused("mlp_only_layers", dense, "a list of layers")
    return Experts(
        layers=frozenset(
            layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0
        ),
        count=count,
        active=active,
        width=whole_number(config, variant.expert_width),
        renormalised=bool(config.get("norm_topk_prob", False)),
    )


def _rope(config: Config, variant: Variant, head_dim: int) -> Rope:
    nested = config.get("rope_parameters") or {}
    scaling = nested or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise refused("rope_parameters", scaling, "an object")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    theta = float(scaling.get("rope_theta", config.get("rope_theta", 10_000.0)))
    rotated = _rotated(scaling, config, variant, head_dim)
    rope = Rope(
        theta, rotated=None if rotated == head_dim else rotated, interleaved=variant.interleaved
    )
    if kind == "default" and not any(isinstance(part, Mapping) for part in scaling.values()):
        return rope
    if kind == "llama3":
        return replace(rope, scaling=_llama3(scaling))
    if kind in ("longrope", "su"):
        return replace(rope, scaling=_longrope(scaling, config, rotated // 2))
    raise refused("rope_type", kind, "'default', 'llama3' or 'longrope'")


def _rotated(scaling: Config, config: Config, variant: Variant, head_dim: int) -> int:
    """Numbers of a head that are rotated."""
    key = "partial_rotary_factor"
    share = scaling.get(key, config.get(key))
    if share is None or share == 1:
        return head_dim
    if not variant.partial_rotary:
        raise refused(key, share, "1.0")
    rotated = int(head_dim * share) if isinstance(share, int | float) else 0
    if not 0 < rotated <= head_dim or rotated % 2 or head_dim % 2:
        raise refused(key, share, f"a share of a head of {head_dim} that is an even number")
    return rotated


def _longrope(scaling: Config, config: Config, pairs: int) -> LongRope:
    key = "original_max_position_embeddings"
    # As transformers reads it: what stands outside goes first.
    original = whole_number({key: config.get(key, scaling.get(key))}, key)
    for name in ("short_mscale", "long_mscale"):
        if scaling.get(name) is not None:
            raise refused(name, scaling[name], "absent")
    factor = scaling.get("factor") or whole_number(config, "max_position_embeddings") / original
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        if original < _LEAST_ORIGINAL:
            raise refused(key, original, f"a whole number from {_LEAST_ORIGINAL}")
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRope(
        short=_factors(scaling, "short_factor", pairs),
        long=_factors(scaling, "long_factor", pairs),
        original_context_tokens=original,
        magnitude=float(magnitude),
    )


_LEAST_ORIGINAL: Final = 2
"""Tokens: of one the logarithm is 0."""


def _factors(scaling: Config, key: str, pairs: int) -> tuple[float, ...]:
    value = scaling.get(key)
    numbers = value if isinstance(value, list) else []
    if len(numbers) != pairs or not all(isinstance(one, int | float) and one for one in numbers):
        raise refused(key, value, f"{pairs} numbers, one for each pair that is rotated")
    return tuple(map(float, numbers))


def _llama3(scaling: Mapping[str, Any]) -> Llama3Scaling:
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for key in keys:
        if not isinstance(scaling.get(key), int | float):
            raise refused(key, scaling.get(key), "a number: rope type llama3 requires it")
    factor, low, high, original = (scaling[key] for key in keys)
    return Llama3Scaling(float(factor), float(low), float(high), int(original))
