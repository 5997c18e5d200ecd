"""Bytes of quantised matrices that stay packed in an engine's memory, as config.json says.

The engine refuses formats that it does not read; here these have no packing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sluice_contract.config.model_shape import Config, ModelShape

QUANTISATION_KEYS: Final = ("quantization_config", "compression_config")
"""Keys of config.json; the second one is the old name."""
PACKED_INPUTS: Final = 32
"""Inputs whose numbers are packed together, a divisor of groups and of each matrix's inputs."""


@dataclass(frozen=True)
class Packing:
    """Bits of a packed matrix's numbers, and bytes beside them."""

    bits: int
    group_bytes: int
    """Bytes of the scale and the zero of one group of an output's inputs."""
    group: int | None = None
    """Inputs of a group; None: all inputs are one group."""
    experts_only: bool = False
    """Whether only the matrices of experts are quantised."""
    parts: int = 1
    """Equal parts into which inputs of all matrices are divided without a cut through a group; the
    number of ranks divides it."""

    def matrix_bytes(self, outs: int, width: int) -> int:
        """Bytes of a matrix [outs, width]."""
        groups = width // self.group if self.group else 1
        return outs * (width * self.bits // 8 + groups * self.group_bytes)


FP8: Final = Packing(8, 4)
"""FP8 with a scale for each output."""
MXFP4: Final = Packing(4, 1, PACKED_INPUTS, experts_only=True)


def packing_of(config: Config, shape: ModelShape) -> Packing | None:
    """Packing that a config.json of `shape` describes; None: matrices are not quantised, or not in
    whole groups of a multiple of `PACKED_INPUTS`, so that an engine dequantises them."""
    value = next((config[key] for key in QUANTISATION_KEYS if config.get(key)), None)
    if not isinstance(value, Mapping):
        return None
    read = _METHODS.get(str(value.get("quant_method")))
    packing = read and read(value, 2 if _dtype(config) == "float16" else 4)
    return packing and divided(packing, shape)


def divided(packing: Packing, shape: ModelShape) -> Packing | None:
    """The packing with the `parts` that a model of `shape` has; None: a matrix of its layers is not
    in whole groups, or groups are no multiple of `PACKED_INPUTS`."""
    unit, inner = packing.group or PACKED_INPUTS, list(_inner_sizes(shape, packing))
    if unit % PACKED_INPUTS or any(width % unit for width in (shape.hidden_size, *inner)):
        return None
    return replace(packing, parts=math.gcd(*(width // unit for width in inner)))


def _inner_sizes(shape: ModelShape, packing: Packing) -> Iterator[int]:
    """Inputs of quantised matrices other than the hidden size."""
    experts = shape.experts
    if experts is not None:
        yield experts.width
    if packing.experts_only:
        return
    yield shape.heads * shape.head_dim
    if experts is None or len(experts.layers) < shape.layers:
        yield shape.intermediate_size


def weight_bytes(shape: ModelShape, packing: Packing | None, value_bytes: int) -> int:
    """Bytes of all matrices; `value_bytes`: size of a number that is not packed."""
    return layer_bytes(shape, packing, value_bytes) + value_bytes * shape.table_values


def layer_bytes(shape: ModelShape, packing: Packing | None, value_bytes: int) -> int:
    """Bytes of the matrices of all layers, all experts included."""
    hidden, heads = shape.hidden_size, shape.heads * shape.head_dim
    keys, experts = shape.kv_heads * shape.head_dim, shape.experts

    def size(outs: int, width: int, *, of_experts: bool = False) -> int:
        if packing is None or (packing.experts_only and not of_experts):
            return outs * width * value_bytes
        return packing.matrix_bytes(outs, width)

    def gated(width: int, *, of_experts: bool = False) -> int:
        up = size(2 * width, hidden, of_experts=of_experts)
        return up + size(hidden, width, of_experts=of_experts)

    attention = size(heads + 2 * keys, hidden) + size(hidden, heads)
    sparse = len(experts.layers) if experts else 0
    dense = (shape.layers - sparse) * gated(shape.intermediate_size)
    own = experts.count * gated(experts.width, of_experts=True) if experts else 0
    return shape.layers * attention + dense + sparse * own


def _fp8(value: Mapping[str, Any], _: int) -> Packing:
    return _in_blocks(value.get("weight_block_size"))


def _compressed(value: Mapping[str, Any], _: int) -> Packing | None:
    groups = value.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            return _in_blocks(weights.get("block_structure"))
    return None


def _in_blocks(block: object) -> Packing:
    is_pair = isinstance(block, list) and len(block) == 2 and type(block[1]) is int
    return Packing(8, 4, block[1]) if is_pair and isinstance(block, list) else FP8


def _int4(value: Mapping[str, Any], scale_bytes: int) -> Packing | None:
    group = value.get("group_size", value.get("q_group_size"))
    if type(group) is not int or group < 1 or value.get("bits") != 4:
        return None
    return Packing(4, scale_bytes + 1, group)


_METHODS: Final[Mapping[str, Callable[[Mapping[str, Any], int], Packing | None]]] = {
    "awq": _int4,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "gptq": _int4,
    "modelopt": lambda *_: FP8,
    "mxfp4": lambda *_: MXFP4,
}


def _dtype(config: Config) -> object:
    return config.get("dtype") or config.get("torch_dtype")
