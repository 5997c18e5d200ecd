"""Reads config.json into a ModelSpec: variants are data, what is not implemented is refused.

Knows no tensor and no file but the parsed config. Both spellings of transformers are read:
`rope_theta` + `rope_scaling` + `torch_dtype`, and `rope_parameters` + `dtype`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.rope import Llama3Scaling, Rope
from sluice_runtime.model.quantised import Fp8, Int4, format_from

Config = Mapping[str, Any]


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
    experts: bool = False
    """Layers have a feed-forward part of experts."""


ARCHITECTURES: Final[Mapping[str, Variant]] = {
    "Qwen3ForCausalLM": Variant(qk_norm=True, head_dim=128),
    "Qwen2ForCausalLM": Variant(qkv_bias=True),
    "Qwen3MoeForCausalLM": Variant(qk_norm=True, experts=True),
    "LlamaForCausalLM": Variant(),
    "MistralForCausalLM": Variant(window_tokens=4096),
}
"""By the name in config.json's `architectures`."""

_EXPERTS: Final = ("num_experts", "num_local_experts")
"""Both spellings of their number."""
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
        width = {"moe_intermediate_size": self.experts.width} if self.experts else {}
        return {
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate_size,
        } | width


def spec_from(config: Config) -> ModelSpec:
    """The spec that config.json describes.

    Raises:
        ModelLoadError: names the key, its value and what is allowed.
    """
    architecture = _architecture(config)
    variant = ARCHITECTURES[architecture]
    _refuse_unknown_features(config, variant)
    window = _window(config, variant)
    heads, hidden = whole_number(config, "num_attention_heads"), whole_number(config, "hidden_size")
    layers = whole_number(config, "num_hidden_layers")
    default_dim = variant.head_dim or hidden // heads
    spec = ModelSpec(
        architecture=architecture,
        variant=variant,
        vocabulary_size=whole_number(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=whole_number(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=whole_number(config, "num_key_value_heads", heads),
        head_dim=whole_number(config, "head_dim", default_dim),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        context_length_tokens=min(
            whole_number(config, "max_position_embeddings"), window or sys.maxsize
        ),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=_dtype(config),
        experts=_experts(config, layers) if variant.experts else None,
        quantised=format_from(config),
    )
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
    ("partial_rotary_factor", (1.0,)),
    ("num_experts", (0,)),
    ("num_local_experts", (0,)),
    ("attn_logit_softcapping", ()),
    ("final_logit_softcapping", ()),
    ("is_encoder_decoder", (False,)),
)
"""Keys that change what a model computes, with the values that are implemented; None always is."""


def _refuse_unknown_features(config: Config, variant: Variant) -> None:
    for key, allowed in FEATURES:
        value = None if variant.experts and key in _EXPERTS else config.get(key)
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
    if variant.window_tokens is not None:
        return whole_number(config, "sliding_window", window)
    if config.get("use_sliding_window") is not False:
        raise refused("sliding_window", window, "absent, null, or with use_sliding_window false")
    return None


def _experts(config: Config, layers: int) -> Experts:
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
        width=whole_number(config, "moe_intermediate_size"),
        renormalised=bool(config.get("norm_topk_prob", False)),
    )


def _rope(config: Config) -> Rope:
    nested = config.get("rope_parameters") or {}
    scaling = nested or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise refused("rope_parameters", scaling, "an object")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    theta = float(scaling.get("rope_theta", config.get("rope_theta", 10_000.0)))
    if scaling.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise refused("partial_rotary_factor", scaling["partial_rotary_factor"], "1.0")
    if kind == "default" and not any(isinstance(part, Mapping) for part in scaling.values()):
        return Rope(theta)
    if kind == "llama3":
        return Rope(theta, _llama3(scaling))
    raise refused("rope_type", kind, "'default' or 'llama3'")


def _llama3(scaling: Mapping[str, Any]) -> Llama3Scaling:
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for key in keys:
        if not isinstance(scaling.get(key), int | float):
            raise refused(key, scaling.get(key), "a number: rope type llama3 requires it")
    factor, low, high, original = (scaling[key] for key in keys)
    return Llama3Scaling(float(factor), float(low), float(high), int(original))
