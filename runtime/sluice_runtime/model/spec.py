"""Reads config.json into a ModelSpec: what is not implemented is refused.

Knows no tensor and no file but the parsed config. Both spellings of transformers are read:
`torch_dtype`, and `dtype`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.model_shape import (
    EXPERT_COUNTS,
    WINDOWED,
    ModelShape,
    architecture_of,
    language_model,
    shape_from,
)

from sluice_runtime.layers.dense import Activation
from sluice_runtime.layers.rope import LongRope, Rope
from sluice_runtime.model.config_json import Config, refused, whole_number
from sluice_runtime.model.quantised import Format, format_from
from sluice_runtime.model.rope_config import LAYER_KINDS, ropes
from sluice_runtime.model.variants import ARCHITECTURES, Variant

DTYPES: Final = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Windows:
    """Layers whose tokens attend to a few before them."""

    layers: frozenset[int]
    tokens: int
    """Itself included."""
    rope: Rope | None = None
    """Rotation in these layers; None: that of the others."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(ModelShape):
    """Everything about a model but its weights."""

    architecture: str
    variant: Variant
    norm_eps: float
    rope: Rope
    dtype: str
    """The checkpoint's."""
    quantised: Format | None = None
    """How the files hold matrices; None: as numbers of a type of `DTYPES`."""
    windows: Windows | None = None
    activation: Activation | None = None
    """Function of gate and up; None: silu(gate) x up."""
    query_scale: float = 1.0
    """By which scores differ from q k / sqrt(head_dim)."""

    @property
    def embedding_scale(self) -> float | None:
        """By which embeddings are multiplied; None: they are not."""
        return math.sqrt(self.hidden_size) if self.variant.scaled_embedding else None

    @property
    def torch_only(self) -> str:
        """What plain torch computes alone, for people; empty: nothing."""
        parts = {
            "sliding windows": self.windows is not None,
            "attention sinks": self.variant.sinks,
            "norms of float32": self.variant.offset_norms,
        }
        return " and ".join([part for part, has in parts.items() if has])

    @property
    def shared_sizes(self) -> Mapping[str, int]:
        """What ranks divide among them, by name."""
        sizes = {"num_key_value_heads": self.kv_heads, "intermediate_size": self.intermediate_size}
        if self.experts is None or self.experts.width == self.intermediate_size:
            return sizes
        return sizes | {"moe_intermediate_size": self.experts.width}

    def serving(self, context_tokens: int) -> ModelSpec:
        """This spec for contexts of at most so many tokens: see `LongRope`."""
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
    if variant.text_part and not isinstance(config.get("text_config"), Mapping):
        raise refused("text_config", config.get("text_config"), "an object")
    config = {**variant.defaults, **language_model(config)}
    _refuse_unknown_features(config, variant)
    if variant.bias_by_key:
        variant = replace(variant, qkv_bias=bool(config["attention_bias"]))
    shape = _shape(config, variant)
    rope, window_rope = ropes(config, variant, shape.head_dim)
    scale = whole_number(config, "query_pre_attn_scalar") if variant.scaled_queries else None
    return ModelSpec(
        **vars(shape),
        architecture=architecture,
        variant=variant,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        dtype=_dtype(config),
        quantised=format_from(config),
        windows=_windows(config, variant, shape.layers, window_rope),
        activation=variant.activation(config) if variant.activation else None,
        query_scale=math.sqrt(shape.head_dim / scale) if scale else 1.0,
    ).serving(shape.context_length_tokens)


def _shape(config: Config, variant: Variant) -> ModelShape:
    try:
        shape = shape_from(config)
    except ConfigError as error:
        raise refused(error.key, error.value, error.allowed) from None
    if variant.experts and shape.experts is None:
        key = next((key for key in EXPERT_COUNTS if key in config), EXPERT_COUNTS[0])
        raise refused(key, config.get(key), "a whole number from 1")
    if shape.heads % shape.kv_heads:
        raise refused("num_key_value_heads", shape.kv_heads, f"a divisor of {shape.heads} heads")
    return shape


def _architecture(config: Config) -> str:
    named = config.get("architectures")
    known = named[0] if isinstance(named, list) and len(named) == 1 else None
    if known not in ARCHITECTURES:
        raise refused("architectures", named, "one of " + ", ".join(ARCHITECTURES))
    return str(known)


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
    ("num_experts", (0,)),
    ("num_local_experts", (0,)),
    ("attn_logit_softcapping", ()),
    ("final_logit_softcapping", ()),
    ("is_encoder_decoder", (False,)),
    ("hidden_activation", ()),
    ("use_bidirectional_attention", (False,)),
)
"""Keys that change what a model computes, with the values that are implemented; None always is."""


def _refuse_unknown_features(config: Config, variant: Variant) -> None:
    read = {*(EXPERT_COUNTS if variant.experts else ())}
    read |= {"attention_bias"} if variant.bias_by_key else set()
    for key, usual in FEATURES:
        allowed = variant.features.get(key, usual)
        value = None if key in read else config.get(key)
        if value is not None and value not in allowed:
            raise refused(key, value, " or ".join(["absent", *map(repr, allowed)]))
    window, off = config.get("sliding_window"), config.get("use_sliding_window") is False
    allows = variant.whole_every is not None or architecture_of(config) in WINDOWED
    if window is not None and not off and not allows:
        raise refused("sliding_window", window, "absent, null, or with use_sliding_window false")
    kinds = LAYER_KINDS if variant.whole_every else LAYER_KINDS[:1]
    for kind in config.get("layer_types") or ():
        if kind not in kinds:
            raise refused("layer_types", kind, " or ".join(map(repr, kinds)))


def _windows(config: Config, variant: Variant, layers: int, rope: Rope | None) -> Windows | None:
    """Layers that have a window, with their own rope."""
    if variant.whole_every is None:
        return None
    every = whole_number(config, "sliding_window_pattern", variant.whole_every)
    kinds = config.get("layer_types") or [
        "sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    ]
    if len(kinds) != layers:
        raise refused("layer_types", f"{len(kinds)} layers", f"{layers}, as num_hidden_layers")
    if config.get("sliding_window") is None:
        raise refused("sliding_window", None, "a whole number from 1")
    windowed = frozenset(at for at, kind in enumerate(kinds) if kind == "sliding_attention")
    return Windows(windowed, whole_number(config, "sliding_window"), rope) if windowed else None
