"""Bytes of quantised matrices that stay packed in an engine's memory, as config.json says.

The engine refuses formats that it does not read; here these have no packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sluice_contract.config.model_shape import Config, ModelShape
from sluice_contract.config.supported import QUANTISATIONS, unsupported_key
from sluice_contract.config.unquantised import unquantised_layers

QUANTISATION_KEYS: Final = ("quantization_config", "compression_config")
"""Keys of config.json; the second one is the old name."""
PACKED_INPUTS: Final = 32
"""Inputs whose numbers are packed together, a divisor of groups and of each matrix's inputs."""


class LayerMatrix(NamedTuple):
    """A matrix [outs, width] that some layers have, joined as engines multiply with it."""

    name: str
    """A key of `unquantised.MODULES`."""
    layers: int
    outs: int
    width: int
    experts: int = 0
    """Experts that each have one; 0: it is none of experts."""


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
    left_out: tuple[tuple[str, int], ...] = ()
    """Names of matrices that are not quantised in some layers, and in how many."""

    @property
    def unit(self) -> int:
        """Inputs that one rank holds together."""
        return self.group or PACKED_INPUTS

    def layers(self, matrix: LayerMatrix) -> int:
        """Number of layers in which a matrix is packed."""
        if self.experts_only and not matrix.experts:
            return 0
        return max(0, matrix.layers - dict(self.left_out).get(matrix.name, 0))

    def matrix_bytes(self, outs: int, width: int) -> int:
        """Bytes of a matrix [outs, width]."""
        groups = width // self.group if self.group else 1
        return outs * (width * self.bits // 8 + groups * self.group_bytes)


FP8: Final = Packing(8, 4)
"""FP8 with a scale for each output."""
MXFP4: Final = Packing(4, 1, PACKED_INPUTS, experts_only=True)


def packing_of(config: Config, shape: ModelShape) -> Packing | None:
    """Packing that a config.json of `shape` describes; None: matrices are not quantised, or cannot
    stay `packable`, so that an engine dequantises them."""
    read = _METHODS.get(quantisation_of(config) or "")
    if read is None:
        return None
    value = next(config[key] for key in QUANTISATION_KEYS if config.get(key))
    packing = read(value, 2 if _dtype(config) == "float16" else 4)
    return packing and packable(replace(packing, left_out=unquantised_layers(value, shape)), shape)


def quantisation_of(config: Config) -> str | None:
    """Name of the quantisation, in `QUANTISATIONS` if engines read it: its method, and the key that
    they refuse; None: weights are not quantised."""
    key = next((key for key in QUANTISATION_KEYS if config.get(key)), None)
    value = config[key] if key else None
    method = value.get("quant_method") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(method, str):
        return key
    refused = unsupported_key(method, value) if method in QUANTISATIONS else None
    if refused is None:
        return method
    path, found, _ = refused
    return f"{method} ({path} {'missing' if found is None else found})"


def packable(packing: Packing, shape: ModelShape) -> Packing | None:
    """The packing if all packed matrices of a model of `shape` are in whole groups of a multiple of
    `PACKED_INPUTS`; None: one is not, or there is none."""
    widths = [matrix.width for matrix in _matrices(shape) if packing.layers(matrix)]
    if not widths or packing.unit % PACKED_INPUTS or any(width % packing.unit for width in widths):
        return None
    return packing


def rank_counts(shape: ModelShape, packing: Packing | None) -> tuple[int, ...]:
    """Numbers of ranks that can share each layer, ascending. Packed, each has whole groups of
    inputs: those of its heads, and at least one of each feed-forward part."""
    if packing is None:
        return shape.rank_counts
    packed = {matrix.name: matrix.width for matrix in _matrices(shape) if packing.layers(matrix)}
    heads = packed.get("output", 0) // packing.unit
    inner = [packed[name] // packing.unit for name in ("down", "experts.down") if name in packed]
    return tuple(n for n in shape.rank_counts if not heads % n and n <= min(inner, default=n))


def widest_part(shape: ModelShape, packing: Packing | None, ranks: int) -> ModelShape:
    """Sizes of each layer's part on the rank that has most. Ranks share feed-forward parts in whole
    groups where matrices are packed, so parts may be unequal."""
    unit, experts = packing.unit if packing else 1, shape.experts

    def inner(width: int) -> int:
        return min(width, -(-width // (unit * ranks)) * unit)

    return replace(
        shape,
        heads=shape.heads // ranks,
        kv_heads=shape.rank_kv_heads(ranks),
        intermediate_size=inner(shape.intermediate_size),
        experts=experts and replace(experts, width=inner(experts.width)),
    )


class LayerSizes(NamedTuple):
    """Sizes of the matrices of all layers, all experts included."""

    packed_bytes: int
    values: int
    """Number of values of the matrices that are not packed."""


def layer_sizes(shape: ModelShape, packing: Packing | None) -> LayerSizes:
    """Sizes of all layers of `shape`, or of the part of them that `widest_part` gives."""
    packed_bytes = values = 0
    for matrix in _matrices(shape):
        layers, count = packing.layers(matrix) if packing else 0, max(1, matrix.experts)
        values += (matrix.layers - layers) * count * matrix.outs * matrix.width
        if packing and layers:
            packed_bytes += layers * count * packing.matrix_bytes(matrix.outs, matrix.width)
    return LayerSizes(packed_bytes, values)


def rank_sizes(shape: ModelShape, packing: Packing | None, ranks: int) -> LayerSizes:
    """Sizes of all matrices on the rank that has most: of layers, the embedding and the output
    layer."""
    layers = layer_sizes(widest_part(shape, packing, ranks), packing)
    rows = -(-shape.vocabulary_size // ranks)
    tables = replace(shape, vocabulary_size=rows).table_values
    return layers._replace(values=layers.values + tables)


def _matrices(shape: ModelShape) -> Iterator[LayerMatrix]:
    hidden, heads = shape.hidden_size, shape.heads * shape.head_dim
    keys, experts = shape.kv_heads * shape.head_dim, shape.experts
    yield LayerMatrix("qkv", shape.layers, heads + 2 * keys, hidden)
    yield LayerMatrix("output", shape.layers, hidden, heads)
    sparse = len(experts.layers) if experts else 0
    if dense := shape.layers - sparse:
        yield LayerMatrix("gate_up", dense, 2 * shape.intermediate_size, hidden)
        yield LayerMatrix("down", dense, hidden, shape.intermediate_size)
    if experts and sparse:
        yield LayerMatrix("experts.gate_up", sparse, 2 * experts.width, hidden, experts.count)
        yield LayerMatrix("experts.down", sparse, hidden, experts.width, experts.count)


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
    if type(group) is not int or (group < 1 and group != -1):
        return None
    return Packing(4, scale_bytes + 1, group if group > 0 else None)


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
