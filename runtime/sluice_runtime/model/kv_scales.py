"""Reads a checkpoint's calibrated scales of keys and values, for 8-bit pages.

Calibration stores one number for all heads of a layer, or one for each head; names differ between
tools. A checkpoint without scales was not calibrated, so its scales are 1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.kv.pool import KvScales
from sluice_runtime.model.families.registry import family_of
from sluice_runtime.model.shard import Shard, Split
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.weights import Checkpoint

KEYS: Final = ("k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale")
VALUES: Final = ("v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale")
"""Names of scales below a layer's `self_attn`, from compressed-tensors, ModelOpt and earlier
versions of vLLM."""

_log = logging.getLogger("sluice.engine")


def kv_scales(spec: ModelSpec, checkpoint: Checkpoint | None, shard: Shard) -> KvScales:
    """Scales of the key heads of `shard`. `checkpoint`: None where weights are random.

    Raises:
        ModelLoadError: only some layers have scales, or a value cannot be a scale.
    """
    names = list(_names(spec, checkpoint)) if checkpoint else []
    stored = [name for pair in names for name in pair if name is not None]
    if checkpoint is None or not stored:
        _log.info("KV cache: fp8_e4m3; scales: 1, since the checkpoint has none")
        return ones(spec.layers, spec.rank_kv_heads(shard.size))
    layers = [
        [_by_head(checkpoint, _present(name, kind, layer), spec.kv_heads, shard)
         for name, kind in zip(pair, ("k_scale", "v_scale"), strict=True)]
        for layer, pair in enumerate(names)
    ]  # fmt: skip
    _log.info("KV cache: fp8_e4m3; scales: the checkpoint's, %s first", stored[0])
    keys, values = (torch.stack(kind) for kind in zip(*layers, strict=True))
    return KvScales(keys, values)


def ones(layers: int, kv_heads: int) -> KvScales:
    """Scales of a model that was not calibrated."""
    return KvScales(torch.ones(layers, kv_heads), torch.ones(layers, kv_heads))


def _names(spec: ModelSpec, checkpoint: Checkpoint) -> Iterator[tuple[str | None, str | None]]:
    """Names of each layer's scales of keys and values; None where there is no scale."""
    model = family_of(spec).prefix(checkpoint)
    for layer in range(spec.layers):
        prefix = f"{model}layers.{layer}.self_attn"
        keys, values = (
            next((f"{prefix}.{end}" for end in ends if checkpoint.stored(f"{prefix}.{end}")), None)
            for ends in (KEYS, VALUES)
        )
        yield keys, values


def _present(name: str | None, kind: str, layer: int) -> str:
    if name is None:
        raise ModelLoadError(
            f"model.uri: tensor model.layers.{layer}.self_attn.{kind} is missing; allowed: scales "
            "of all layers' keys and values, or none"
        )
    return name


def _by_head(checkpoint: Checkpoint, name: str, kv_heads: int, shard: Shard) -> Tensor:
    """Scales [key heads of the shard], float32."""
    stored = checkpoint.small(name).float().flatten()
    if len(stored) not in (1, kv_heads):
        raise ModelLoadError(
            f"model.uri: tensor {name} has {len(stored)} numbers; allowed: 1, or {kv_heads}, one "
            "for each key head"
        )
    if not bool(((stored > 0) & stored.isfinite()).all()):
        raise ModelLoadError(
            f"model.uri: tensor {name} has {float(stored.min())}; allowed: numbers above 0"
        )
    part = shard.part((kv_heads,), Split.KEYS)
    return stored.expand(kv_heads).narrow(0, part.begin, part.length).clone()
