"""Reads quantised checkpoints, in the formats that config.json may name.

A matrix is dequantised while it is loaded, so layers do not know about quantisation. Tensor names
show which matrices are quantised, so `modules_to_not_convert`, `ignore` and the like are not
needed. Scales of activations are not read, because activations have the engine's type. If pages
hold 8 bits, `model.kv_scales` reads the scales of keys and values.

Shapes: `out` and `in` are of the whole matrix [out, in], of which a rank reads a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.kv.pool import CPU
from sluice_runtime.model.config_json import Config
from sluice_runtime.model.mxfp4 import Mxfp4
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.weights import Checkpoint, WeightSource

Fill = Callable[[Tensor], None]
"""Function that writes a matrix into a tensor [out, in] of any float type; call it once the stored
values have been read."""

KEYS: Final = ("quantization_config", "compression_config")
"""Keys of config.json; the second one is the old name."""
UNUSED: Final = (
    *(".input_scale", ".activation_scale", ".output_scale"),
    *(".k_scale", ".v_scale", ".kv_scale"),
)
"""Endings of tensors that are not read here: scales of activations, keys and values."""
_CHUNK_ROWS: Final = 1024
"""Outputs that are dequantised at once, since that briefly takes more than their size in
float32."""
_INTS: Final = 8
"""Number of 4-bit numbers in an int32."""


class Format(Protocol):
    """Storage format of a matrix."""

    @property
    def tensor(self) -> str:
        """Ending of the numbers' tensor name, after that of `module`."""
        ...

    def module(self, name: str) -> str:
        """Module that the tensor `name` belongs to; empty if it is never quantised."""
        ...

    def units(self, part: TensorPart) -> tuple[int, ...]:
        """Number of values stored together in each dimension: parts are read in whole units."""
        ...

    def read(self, files: QuantisedWeights, name: str, part: TensorPart) -> Fill:
        """Starts reading a part in whole units; returns the function that fills the matrix."""
        ...


@dataclass(frozen=True)
class Fp8:
    """8-bit numbers (e4m3) with a scale for the whole matrix, for each output, or for each
    block."""

    block: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"FP8 in blocks of {self.block[0]}x{self.block[1]}" if self.block else "FP8"

    @property
    def tensor(self) -> str:
        return ".weight"

    def module(self, name: str) -> str:
        return _matrix(name)

    def units(self, part: TensorPart) -> tuple[int, int]:
        return self.block or (1, 1)

    def read(self, files: QuantisedWeights, name: str, part: TensorPart) -> Fill:
        numbers = files.read_stored(f"{name}.weight", part, torch.float8_e4m3fn)
        scale = self._scale(files, name, part)
        height, width = self.block or (1, part.shape[1])

        def fill(target: Tensor) -> None:
            for rows in _chunks(len(target), height):
                scales = scale[rows.start // height : -(-rows.stop // height)]
                scales = scales.repeat_interleave(height, 0)[: rows.stop - rows.start]
                scales = scales.repeat_interleave(width, 1)[:, : target.shape[1]]
                target[rows] = (numbers[rows].float() * scales).to(target.dtype)

        return fill

    def _scale(self, files: QuantisedWeights, name: str, part: TensorPart) -> Tensor:
        """Scales [blocks of outputs, blocks of inputs]."""
        names = (f"{name}.weight_scale_inv", f"{name}.weight_scale")
        names = names if self.block else names[::-1]
        stored = next((name for name in names if files.shape_of(name) is not None), names[0])
        shape = files.shape_of(stored)
        if self.block:
            return files.read_stored(stored, _stored(part, self.block), torch.float32)
        if shape is not None and shape.numel() == 1:
            return files.read_small(stored).float().view(1, 1).expand(part.shape[0], 1)
        by_output = TensorPart((part.whole[0], 1), 0, 0, part.whole[0])
        if part.dim == 0:
            by_output = replace(by_output, begin=part.begin, length=part.length)
        if shape is not None and len(shape) == 1:
            by_output = replace(by_output, whole=part.whole[:1])
        return files.read_stored(stored, by_output, torch.float32).view(-1, 1)


@dataclass(frozen=True)
class Int4:
    """4-bit numbers, eight in an int32, stored transposed: [in, out]. For each output, a group of
    inputs shares a scale and a zero."""

    method: str
    packed_dim: int
    """Dimension of the stored [in, out] in which eight numbers are packed."""
    shifts: tuple[int, ...]
    """Bit offsets of eight consecutive numbers in an int32; also those of zeros."""
    group_size: int
    """Number of inputs of a group; -1: all inputs are one group."""
    zero_offset: int = 0
    """Offset that is added to the stored zeros."""
    symmetric: bool = False
    """Whether zeros may be left out; then they are 8."""

    def __str__(self) -> str:
        groups = f"groups of {self.group_size}" if self.group_size > 0 else "one group"
        return f"{self.method}, 4 bits, {groups}"

    @property
    def tensor(self) -> str:
        return ".qweight"

    def module(self, name: str) -> str:
        return _matrix(name)

    def units(self, part: TensorPart) -> tuple[int, int]:
        return _INTS, self._group(part)

    def _group(self, part: TensorPart) -> int:
        return self.group_size if self.group_size > 0 else part.whole[1]

    def read(self, files: QuantisedWeights, name: str, part: TensorPart) -> Fill:
        group, (out, width) = self._group(part), part.whole
        if out % _INTS or width % group or group % _INTS:
            raise ModelLoadError(
                f"config.json: quantization_config.group_size: {self.group_size} does not fit "
                f"{name} of {out} outputs and {width} inputs; allowed: whole groups, in units of 8"
            )
        self._check_order(files, name, group)
        packed = (1, _INTS) if self.packed_dim == 0 else (_INTS, 1)
        numbers = files.read_stored(f"{name}.qweight", _stored(part, packed, True), torch.int32)
        grouped = _stored(part, (1, group), True)
        scales = files.read_stored(f"{name}.scales", grouped, torch.float32)
        zeros = self._zeros(files, name, _stored(part, (_INTS, group), True))

        def fill(target: Tensor) -> None:
            offsets = 8 if zeros is None else _unpacked(zeros, 1, self.shifts) + self.zero_offset
            for rows in _chunks(len(target), _INTS):
                stop = -(-rows.stop // packed[0])
                own = numbers[:, rows.start // packed[0] : stop]
                # [groups, inputs of a group, outputs]
                values = _unpacked(own, self.packed_dim, self.shifts)
                values = values.view(-1, group, values.shape[1])
                own_zeros = offsets if isinstance(offsets, int) else offsets[:, None, rows]
                floats = (values - own_zeros).float() * scales[:, None, rows]
                target[rows] = floats.flatten(0, 1).T.to(target.dtype)

        return fill

    def _zeros(self, files: QuantisedWeights, name: str, part: TensorPart) -> Tensor | None:
        stored = f"{name}.qzeros"
        if self.symmetric and files.shape_of(stored) is None:
            return None
        return files.read_stored(stored, part, torch.int32)

    def _check_order(self, files: QuantisedWeights, name: str, group: int) -> None:
        """Refuses act-order: the group that GPTQ stores for each input must be in ascending
        order."""
        stored = f"{name}.g_idx"
        if files.shape_of(stored) is None:
            return
        groups = files.read_small(stored)
        if not torch.equal(groups.long(), torch.arange(len(groups), device=groups.device) // group):
            raise ModelLoadError(
                f"model.uri: tensor {stored} has groups in another order; allowed: "
                f"inputs in order, {group} a group (desc_act is not implemented)"
            )


def _matrix(name: str) -> str:
    module, _, kind = name.rpartition(".")
    return module if kind == "weight" else ""


def format_from(config: Config) -> Format | None:
    """The format that config.json names; None: weights are not quantised.

    Raises:
        ModelLoadError: names the key, its value and what is allowed.
    """
    key = next((key for key in KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    value = _Keys(key, config[key] if isinstance(config[key], Mapping) else {})
    if value.values is not config[key]:
        raise value.refused("", config[key], "an object")
    method = value.one_of("quant_method", *FORMATS)
    return FORMATS[method](value)


@dataclass(frozen=True)
class _Keys:
    """An object of config.json, and its path there."""

    name: str
    values: Config

    def refused(self, key: str, value: object, allowed: str) -> ModelLoadError:
        path = f"{self.name}.{key}" if key else self.name
        return ModelLoadError(f"config.json: {path}: {value!r} is not allowed; allowed: {allowed}")

    def one_of(self, key: str, *allowed: Any) -> Any:
        """Value of the key, which must be one of `allowed`."""
        value = self.values.get(key)
        if not any(value == choice and type(value) is type(choice) for choice in allowed):
            raise self.refused(key, value, " or ".join(map(_word, allowed)))
        return value

    def empty(self, *keys: str) -> None:
        """Refuses keys that change the meaning of weights, if they are set."""
        for key in keys:
            if self.values.get(key):
                raise self.refused(key, self.values[key], "absent")

    def below(self, key: str) -> _Keys:
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.refused(key, value, "an object")
        return _Keys(f"{self.name}.{key}", value)

    def block(self, key: str) -> tuple[int, int] | None:
        value = self.values.get(key)
        if value is None:
            return None
        whole = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
        if not whole or len(value) != 2:
            raise self.refused(key, value, "absent, or two whole numbers from 1")
        return value[0], value[1]

    def group_size(self) -> int:
        value = self.values.get("group_size", self.values.get("q_group_size"))
        if type(value) is not int or (value != -1 and (value < 1 or value % _INTS)):
            raise self.refused("group_size", value, "-1, or a multiple of 8")
        return value


def _word(value: object) -> str:
    return "absent" if value is None else repr(value)


def _fp8(keys: _Keys) -> Fp8:
    keys.one_of("fmt", None, "e4m3", "float8_e4m3fn")
    return Fp8(keys.block("weight_block_size"))


def _compressed(keys: _Keys) -> Fp8:
    keys.one_of("format", "float-quantized")
    keys.empty("transform_config")
    if keys.values.get("sparsity_config"):
        keys.below("sparsity_config").one_of("format", None, "dense")
    groups = keys.below("config_groups")
    formats = {_compressed_group(groups.below(name).below("weights")) for name in groups.values}
    if len(formats) != 1:
        raise groups.refused("", sorted(map(str, formats)), "groups of one format")
    return formats.pop()


def _compressed_group(weights: _Keys) -> Fp8:
    weights.one_of("type", "float")
    weights.one_of("num_bits", 8)
    strategy = weights.one_of("strategy", "tensor", "channel", "block")
    block = weights.block("block_structure")
    if (strategy == "block") != (block is not None):
        raise weights.refused("block_structure", block, "with strategy 'block', and only there")
    return Fp8(block)


def _modelopt(keys: _Keys) -> Fp8:
    keys.one_of("quant_algo", "FP8")
    return Fp8()


def _awq(keys: _Keys) -> Int4:
    keys.one_of("bits", 4)
    keys.one_of("version", None, "gemm", "GEMM")
    keys.one_of("zero_point", True)
    # Eight outputs are stored in the order 0, 2, 4, 6, 1, 3, 5, 7.
    return Int4("AWQ", 1, (0, 16, 4, 20, 8, 24, 12, 28), keys.group_size())


def _gptq(keys: _Keys) -> Int4:
    keys.one_of("bits", 4)
    keys.one_of("desc_act", None, False)
    layout = keys.one_of("checkpoint_format", None, "gptq", "gptq_v2")
    keys.empty("dynamic")
    symmetric = keys.one_of("sym", None, True, False) is not False
    # GPTQ's first layout stores zeros reduced by one.
    offset = 0 if layout == "gptq_v2" else 1
    return Int4("GPTQ", 0, tuple(range(0, 32, 4)), keys.group_size(), offset, symmetric)


FORMATS: Final[Mapping[str, Callable[[_Keys], Format]]] = {
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": lambda _: Mxfp4(),
}
"""Constructors of formats by `quant_method`; `supported.py` of the contract lists the same
names."""


class QuantisedWeights:
    """`model.weights.WeightSource` of a quantised checkpoint; matrices are dequantised in
    `settle`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        source: WeightSource,
        stored_as: Format,
        device: torch.device = CPU,
    ) -> None:
        """`source` reads tensors of `checkpoint` to `device`."""
        self._checkpoint = checkpoint
        self._device = device
        self._source = source
        self._format = stored_as
        self._pending: list[tuple[Fill, Tensor, TensorPart, TensorPart]] = []
        """Fill functions with their target, the part that the target holds, and the part that was
        read."""

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """See `WeightSource`; raises what `Checkpoint.find` raises."""
        module = self._format.module(name)
        if not module or not self._is_quantised(name, module, part):
            return self._source.read(name, part, dtype)
        covering = _covering(part, self._format.units(part)[part.dim])
        fill = self._format.read(self, module, covering)
        target = torch.empty(part.shape, dtype=dtype, device=self._device)
        self._pending.append((fill, target, part, covering))
        return target

    def _is_quantised(self, name: str, module: str, part: TensorPart) -> bool:
        if len(part.whole) == 1:
            return False
        stored_as = f"{module}{self._format.tensor}"
        stored = self._checkpoint.stored(stored_as)
        if stored is None:  # neither is there: the message names the quantised tensor
            return self._checkpoint.stored(name) is None
        return stored_as != name or stored.dtype == "F8_E4M3"

    def read_stored(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """Reads a tensor as it is stored: see `read`."""
        return self._source.read(name, part, dtype)

    def read_small(self, name: str) -> Tensor:
        """Reads all of a small tensor, at once."""
        return self._checkpoint.small(name).to(self._device)

    def shape_of(self, name: str) -> torch.Size | None:
        """Shape of a tensor; None: there is no such tensor."""
        stored = self._checkpoint.stored(name)
        return None if stored is None else torch.Size(stored.shape)

    def settle(self) -> None:
        """See `WeightSource`."""
        self._source.settle()
        pending, self._pending = self._pending, []
        for fill, target, part, covering in pending:
            if covering == part:
                fill(target)
                continue
            whole = target.new_empty(covering.shape)
            fill(whole)
            target.copy_(whole.narrow(part.dim, part.begin - covering.begin, part.length))

    def unread(self) -> list[str]:
        """See `WeightSource`."""
        unread = self._source.unread()
        return [name for name in unread if not name.split(" in ")[0].endswith(UNUSED)]


def _covering(part: TensorPart, unit: int) -> TensorPart:
    """The smallest part in whole units that covers `part`."""
    begin = part.begin // unit * unit
    end = min(-(-(part.begin + part.length) // unit) * unit, part.whole[part.dim])
    return replace(part, begin=begin, length=max(0, end - begin))


def _stored(part: TensorPart, units: tuple[int, int], transposed: bool = False) -> TensorPart:
    """Corresponding part of a tensor with one value for each unit of `units` outputs and inputs."""
    whole = tuple(-(-size // unit) for size, unit in zip(part.whole, units, strict=True))
    unit = units[part.dim]
    begin, length = part.begin // unit, -(-part.length // unit)
    if transposed:
        return TensorPart(whole[::-1], 1 - part.dim, begin, length)
    return TensorPart(whole, part.dim, begin, length)


def _chunks(rows: int, unit: int) -> Iterator[slice]:
    step = max(unit, _CHUNK_ROWS // unit * unit)
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))


def _unpacked(packed: Tensor, dim: int, shifts: tuple[int, ...]) -> Tensor:
    """Unpacks int32: each element of `packed` becomes eight numbers along `dim`."""
    places = torch.tensor(shifts, dtype=torch.int32, device=packed.device)
    places = places.view(-1, *(1,) * (packed.ndim - 1 - dim))
    return ((packed.unsqueeze(dim + 1) >> places) & 15).flatten(dim, dim + 1)
