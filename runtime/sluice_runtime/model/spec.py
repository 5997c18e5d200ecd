"""A model's spec, and reading it from the keys of config.json that all families share. Features
that are not implemented are refused.

Knows no family and no tensor, and of the files only the parsed config. Both of transformers'
spellings are read: `torch_dtype` and `dtype`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.model_shape import (
    EXPERT_COUNTS,
    WINDOWED,
    ModelShape,
    architecture_of,
    shape_from,
)
from sluice_contract.config.packing import Packing

from sluice_runtime.layers.dense import Activation
from sluice_runtime.layers.rope import LongRope, Rope
from sluice_runtime.model.config_json import Config, refused, whole_number
from sluice_runtime.model.quantised import Format

DTYPES: Final = ("float32", "bfloat16", "float16")
LAYER_KINDS: Final = ("full_attention", "sliding_attention")
"""Kinds of layers, as `layer_types` and `rope_parameters` name them."""


@dataclass(frozen=True)
class Windows:
    """Layers whose tokens attend only to a few earlier tokens."""

    layers: frozenset[int]
    tokens: int
    """Length of the window in tokens, including the token itself."""
    rope: Rope | None = None
    """Rotation in these layers; None: equal in all layers."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(ModelShape):
    """Everything about a model except its weights."""

    architecture: str
    norm_eps: float
    rope: Rope
    dtype: str
    """Name of the checkpoint's type."""
    quantised: Format | None = None
    """Storage format of matrices; None: plain numbers of a type in `DTYPES`."""
    packing: Packing | None = None
    """Packing of matrices where they stay packed; None: they are dequantised everywhere."""
    windows: Windows | None = None
    activation: Activation | None = None
    """Function of gate and up; None: silu(gate) x up."""
    embedding_scale: float | None = None
    """Factor on embeddings; None: 1."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases."""

    def serving(self, context_tokens: int) -> ModelSpec:
        """The spec for contexts of at most `context_tokens` tokens: see `LongRope`."""
        scaling = self.rope.scaling
        if not isinstance(scaling, LongRope):
            return self
        rope = replace(self.rope, scaling=replace(scaling, context_tokens=context_tokens))
        return replace(self, rope=rope)


def shape_of(config: Config, *, experts: bool) -> ModelShape:
    """Checked sizes from the result of `language_model`. `experts`: whether the family has
    experts."""
    try:
        shape = shape_from(config)
    except ConfigError as error:
        raise refused(error.key, error.value, error.allowed) from None
    if experts and shape.experts is None:
        key = next((key for key in EXPERT_COUNTS if key in config), EXPERT_COUNTS[0])
        raise refused(key, config.get(key), "a whole number from 1")
    if shape.heads % shape.kv_heads:
        raise refused("num_key_value_heads", shape.kv_heads, f"a divisor of {shape.heads} heads")
    return shape


def dtype_of(config: Config) -> str:
    """Type of the checkpoint's numbers."""
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    if value not in DTYPES:
        raise refused("dtype", value, ", ".join(DTYPES))
    return str(value)


Features = Mapping[str, tuple[object, ...]]
FEATURES: Final[Features] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "is_encoder_decoder": (False,),
    "hidden_activation": (),
    "use_bidirectional_attention": (False,),
}
"""Keys that change what a model computes, with the values that are implemented; None is always
allowed."""


def refuse_unknown_features(config: Config, features: Features, *, windows: bool) -> None:
    """Refuses features that are not implemented. `features`: the family's version of `FEATURES`;
    `windows`: whether some of its layers have a window."""
    for key, allowed in features.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            raise refused(key, value, " or ".join(["absent", *map(repr, allowed)]))
    window, off = config.get("sliding_window"), config.get("use_sliding_window") is False
    allows = windows or architecture_of(config) in WINDOWED
    if window is not None and not off and not allows:
        raise refused("sliding_window", window, "absent, null, or with use_sliding_window false")
    kinds = LAYER_KINDS if windows else LAYER_KINDS[:1]
    for kind in config.get("layer_types") or ():
        if kind not in kinds:
            raise refused("layer_types", kind, " or ".join(map(repr, kinds)))


def windows_of(config: Config, layers: int, whole_every: int, rope: Rope | None) -> Windows | None:
    """Layers with a window, and their rope: those that config.json names, else all except every
    `whole_every`-th."""
    every = whole_number(config, "sliding_window_pattern", whole_every)
    kinds = config.get("layer_types") or [
        "sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    ]
    if len(kinds) != layers:
        raise refused("layer_types", f"{len(kinds)} layers", f"{layers}, as num_hidden_layers")
    if config.get("sliding_window") is None:
        raise refused("sliding_window", None, "a whole number from 1")
    windowed = frozenset(at for at, kind in enumerate(kinds) if kind == "sliding_attention")
    return Windows(windowed, whole_number(config, "sliding_window"), rope) if windowed else None
