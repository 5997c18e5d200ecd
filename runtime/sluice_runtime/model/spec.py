"""Reads config.json into a ModelSpec: what is not implemented is refused.

Knows no tensor and no file but the parsed config. Both spellings of transformers are read:
`torch_dtype`, and `dtype`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.config.model_facts import SIZES

from sluice_runtime.layers.dense import Activation
from sluice_runtime.layers.rope import LongRope, Rope
from sluice_runtime.model.config_json import Config, refused, whole_number
from sluice_runtime.model.quantised import Format, format_from
from sluice_runtime.model.rope_config import LAYER_KINDS, ropes
from sluice_runtime.model.variants import ARCHITECTURES, Variant

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
class Windows:
    """Of those layers whose tokens attend to a few before them."""

    layers: frozenset[int]
    tokens: int
    """Itself included."""
    rope: Rope | None = None
    """Of these layers; None: that of the others."""


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
    """At most the sliding window where layers have none of their own: within it attention is full
    attention."""
    tied_embeddings: bool
    dtype: str
    """The checkpoint's."""
    experts: Experts | None = None
    quantised: Format | None = None
    """How the files hold matrices; None: as numbers of a type of `DTYPES`."""
    windows: Windows | None = None
    activation: Activation | None = None
    """Of gate and up; None: silu(gate) x up."""
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
    config = _text_config(config) if variant.text_part else config
    config = {**SIZES.get(architecture, {}), **variant.defaults, **config}
    _refuse_unknown_features(config, variant)
    if variant.bias_by_key:
        variant = replace(variant, qkv_bias=bool(config["attention_bias"]))
    window = _window(config, variant)
    heads, hidden = whole_number(config, "num_attention_heads"), whole_number(config, "hidden_size")
    layers = whole_number(config, "num_hidden_layers")
    head_dim = whole_number(config, "head_dim", hidden // heads)
    rope, window_rope = ropes(config, variant, head_dim)
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
        rope=rope,
        context_length_tokens=context,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=_dtype(config),
        experts=_experts(config, layers, variant) if variant.experts else None,
        quantised=format_from(config),
        windows=_windows(config, variant, layers, window_rope),
        activation=variant.activation(config) if variant.activation else None,
        query_scale=(
            math.sqrt(head_dim / whole_number(config, "query_pre_attn_scalar"))
            if variant.scaled_queries
            else 1.0
        ),
    ).serving(context)
    if heads % spec.kv_heads:
        raise refused("num_key_value_heads", spec.kv_heads, f"a divisor of {heads} heads")
    return spec


def _text_config(config: Config) -> Config:
    """Of the language model; what it leaves out stands beside it."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise refused("text_config", text, "an object")
    return {**config, **{key: value for key, value in text.items() if value is not None}}


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
    read = (*(_EXPERTS if variant.experts else ()), *(_BIAS if variant.bias_by_key else ()))
    for key, usual in FEATURES:
        allowed = variant.features.get(key, usual)
        value = None if key in read else config.get(key)
        if value is not None and value not in allowed:
            raise refused(key, value, " or ".join(["absent", *map(repr, allowed)]))
    kinds = LAYER_KINDS if variant.whole_every else LAYER_KINDS[:1]
    for kind in config.get("layer_types") or ():
        if kind not in kinds:
            raise refused("layer_types", kind, " or ".join(map(repr, kinds)))


def _window(config: Config, variant: Variant) -> int | None:
    """Tokens that the last one attends to in every layer, itself included; None: all before it."""
    if variant.whole_every is not None:
        return None
    window = config.get("sliding_window", variant.window_tokens)
    if window is None:
        return None
    if variant.windowed:
        return whole_number(config, "sliding_window", window)
    if config.get("use_sliding_window") is not False:
        raise refused("sliding_window", window, "absent, null, or with use_sliding_window false")
    return None


def _windows(config: Config, variant: Variant, layers: int, rope: Rope | None) -> Windows | None:
    """Of the layers that have one, with their own rope."""
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
