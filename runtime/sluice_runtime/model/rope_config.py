"""Reads a `Rope`, the rules for angles of positions, from config.json, and refuses what is not
implemented.

Both of transformers' spellings are read: `rope_theta` with `rope_scaling`, and `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sluice_runtime.layers.rope import LinearScaling, Llama3Scaling, LongRope, Rope, YarnScaling
from sluice_runtime.model.config_json import (
    Config,
    object_of,
    positive_number,
    refused,
    whole_number,
)

ROPE_TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_ORIGINAL: Final = "original_max_position_embeddings"


def rope_from(
    config: Config, head_dim: int, types: Sequence[str] = ROPE_TYPES, *, partial: bool = False
) -> Rope:
    """Rope that config.json describes. `types`: types that transformers computes for the family.
    `partial`: whether partial_rotary_factor may limit the rotation to a share of a head."""
    scaling = object_of(config, "rope_scaling") or object_of(config, "rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    (theta,) = _numbers(kind, {"rope_theta": 10_000.0, **config, **scaling}, "rope_theta")
    rotated = _rotated(scaling, config, head_dim, partial)
    rope = Rope(theta, rotated=None if rotated == head_dim else rotated)
    kind = "longrope" if kind == "su" else kind
    nests = any(isinstance(part, Mapping) for part in scaling.values())
    if kind not in types or (kind == "default" and nests):
        raise refused("rope_type", kind, " or ".join(map(repr, types)))
    scaling = {_ORIGINAL: config.get("max_position_embeddings"), **scaling, **_outside(config)}
    match kind:
        case "dynamic":
            # Frequencies change only beyond max_position_embeddings, and no context is longer.
            _numbers(kind, scaling, "factor")
        case "llama3":
            return replace(rope, scaling=_llama3(scaling))
        case "linear":
            return replace(rope, scaling=LinearScaling(*_numbers(kind, scaling, "factor")))
        case "yarn":
            return replace(rope, scaling=_yarn(scaling))
        case "longrope":
            return replace(rope, scaling=_longrope(scaling, config, rotated // 2))
    return rope


def _rotated(scaling: Config, config: Config, head_dim: int, partial: bool) -> int:
    """Number of a head's values that are rotated."""
    key = "partial_rotary_factor"
    share = scaling.get(key, config.get(key))
    if share is None or share == 1:
        return head_dim
    if not partial:
        raise refused(key, share, "1.0")
    rotated = int(head_dim * share) if isinstance(share, int | float) else 0
    if not 0 < rotated <= head_dim or rotated % 2 or head_dim % 2:
        raise refused(key, share, f"a share of a head of {head_dim} that is an even number")
    return rotated


def _longrope(scaling: Config, config: Config, pairs: int) -> LongRope:
    original = whole_number(scaling, _ORIGINAL)
    for name in ("short_mscale", "long_mscale"):
        if scaling.get(name) is not None:
            raise refused(name, scaling[name], "absent")
    ratio = whole_number(config, "max_position_embeddings") / original
    (factor,) = _numbers("longrope", {"factor": scaling.get("factor") or ratio}, "factor")
    magnitude = _attention_factor("longrope", scaling)
    if magnitude is None:
        if original < _LEAST_ORIGINAL:
            raise refused(_ORIGINAL, original, f"a whole number from {_LEAST_ORIGINAL}")
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRope(
        short=_factors(scaling, "short_factor", pairs),
        long=_factors(scaling, "long_factor", pairs),
        original_context_tokens=original,
        magnitude=magnitude,
    )


_LEAST_ORIGINAL: Final = 2
"""Smallest original context in tokens: its logarithm is a divisor, and that of 1 is 0."""


def _factors(scaling: Config, key: str, pairs: int) -> tuple[float, ...]:
    value = scaling.get(key)
    numbers = value if isinstance(value, list) else []
    if len(numbers) != pairs or not all(isinstance(n, int | float) and n for n in numbers):
        raise refused(key, value, f"{pairs} numbers, one for each pair that is rotated")
    return tuple(map(float, numbers))


def _numbers(kind: str, scaling: Config, *keys: str) -> list[float]:
    return [positive_number(scaling, key, f": rope type {kind} requires it") for key in keys]


def _llama3(scaling: Config) -> Llama3Scaling:
    keys = ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL)
    factor, low, high, original = _numbers("llama3", scaling, *keys)
    return Llama3Scaling(factor, low, high, int(original))


def _yarn(scaling: Config) -> YarnScaling:
    """YaRN scaling; null betas get transformers' defaults."""
    for key in ("mscale", "mscale_all_dim"):
        if scaling.get(key) is not None:
            raise refused(key, scaling[key], "absent")
    betas = {"beta_fast": 32.0, "beta_slow": 1.0}
    written = {**scaling, **{key: scaling.get(key) or beta for key, beta in betas.items()}}
    factor, fast, slow, original = _numbers("yarn", written, "factor", *betas, _ORIGINAL)
    truncate, magnitude = bool(scaling.get("truncate", True)), _attention_factor("yarn", scaling)
    return YarnScaling(factor, fast, slow, int(original), truncate, magnitude)


def _outside(config: Config) -> Config:
    """The original context if config.json has it outside the rope object, as in Phi-3; it takes
    precedence."""
    return {_ORIGINAL: config[_ORIGINAL]} if config.get(_ORIGINAL) is not None else {}


def _attention_factor(kind: str, scaling: Config) -> float | None:
    if scaling.get("attention_factor") is None:
        return None
    return _numbers(kind, scaling, "attention_factor")[0]
