"""Reads quantised checkpoints, in the formats that `model.quantisation_config` finds.

A matrix is dequantised while it is loaded, or packed in the layout of `sluice_kernels.packed`.
Scales of activations are not read, because activations have the engine's type. If pages hold 8
bits, `model.kv_scales` reads the scales of keys and values.

Shapes: `out` and `in` are of the whole matrix [out, in], of which a rank reads a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import torch
from sluice_kernels.packed import Kind, PackedMatrix, packed_4_bits
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.kv.pool import CPU
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.weights import Checkpoint, WeightSource

Fill = Callable[[Tensor], None]
"""Function that writes a matrix into a tensor [out, in] of any float type; call it once the stored
values have been read."""

Packed = tuple[PackedMatrix, Callable[[], None]]
"""A matrix [..., out, in], and the function that gives it its values; call it once the stored
values have been read."""

UNUSED: Final = (
    *(".input_scale", ".activation_scale", ".output_scale"),
    *(".k_scale", ".v_scale", ".kv_scale"),
)
"""Endings of tensors that are not read here: scales of activations, keys and values."""
_CHUNK_ROWS: Final = 1024
"""Outputs that are dequantised at once, since that briefly takes more than their size in
float32."""
SYMMETRIC_ZERO: Final = 8
"""Zero of 4-bit numbers without stored zeros."""
INTS: Final = 8
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

    def pack(self, files: QuantisedWeights, name: str, part: TensorPart) -> Packed:
        """Starts reading a part in whole units, to be kept packed."""
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

    def pack(self, files: QuantisedWeights, name: str, part: TensorPart) -> Packed:
        numbers = files.read_stored(f"{name}.weight", part, torch.float8_e4m3fn).view(torch.uint8)
        stored, height = self._scale(files, name, part), self.block[0] if self.block else 1
        scales = stored.new_empty(len(numbers), stored.shape[1])

        def complete() -> None:
            scales.copy_(stored.repeat_interleave(height, 0)[: len(scales)])

        return PackedMatrix(Kind.FP8, numbers, scales), complete

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
    """Number of inputs of a group; -1: all inputs are one group, which ranks may cut."""
    zero_offset: int = 0
    """Offset that is added to the stored zeros."""
    symmetric: bool = False
    """Whether zeros may be left out; then they are `SYMMETRIC_ZERO`."""

    def __str__(self) -> str:
        groups = f"groups of {self.group_size}" if self.group_size > 0 else "one group"
        return f"{self.method}, 4 bits, {groups}"

    @property
    def tensor(self) -> str:
        return ".qweight"

    def module(self, name: str) -> str:
        return _matrix(name)

    def units(self, part: TensorPart) -> tuple[int, int]:
        return INTS, self.group_size if self.group_size > 0 else INTS

    def read(self, files: QuantisedWeights, name: str, part: TensorPart) -> Fill:
        group = self.group_size if self.group_size > 0 else max(1, part.shape[1])
        numbers, scales, zeros = self._stored(files, name, part, torch.float32)

        def fill(target: Tensor) -> None:
            offsets = SYMMETRIC_ZERO if zeros is None else self._offsets(zeros)
            for rows in _chunks(len(target), INTS):
                own = numbers[:, self._packed_outputs(rows)]
                # [groups, inputs of a group, outputs]
                values = _unpacked(own, self.packed_dim, self.shifts)
                values = values.view(-1, group, values.shape[1])
                own_zeros = offsets if isinstance(offsets, int) else offsets[:, None, rows]
                floats = (values - own_zeros).float() * scales[:, None, rows]
                target[rows] = floats.flatten(0, 1).T.to(target.dtype)

        return fill

    def pack(self, files: QuantisedWeights, name: str, part: TensorPart) -> Packed:
        scales_in_half = files.type_of(f"{name}.scales") == "F16"
        dtype = torch.float16 if scales_in_half else torch.float32
        numbers, scales, zeros = self._stored(files, name, part, dtype)
        out, width = part.shape
        packed = numbers.new_empty((out, width // 2), dtype=torch.uint8)
        by_output = scales.new_empty((out, len(scales)))
        own_zeros = by_output.new_empty(by_output.shape, dtype=torch.uint8)

        def complete() -> None:
            by_output.copy_(scales.T)
            if zeros is None:
                own_zeros.fill_(SYMMETRIC_ZERO)
            else:
                own_zeros.copy_(self._offsets(zeros).T)
            for rows in _chunks(out, INTS):
                own = numbers[:, self._packed_outputs(rows)]
                values = _unpacked(own, self.packed_dim, self.shifts)
                packed[rows] = packed_4_bits(values.T.to(torch.uint8))

        return PackedMatrix(Kind.INT4, packed, by_output, own_zeros), complete

    def _offsets(self, zeros: Tensor) -> Tensor:
        """Zeros [groups, out]."""
        return _unpacked(zeros, 1, self.shifts) + self.zero_offset

    def _packed_outputs(self, rows: slice) -> slice:
        """Columns of the stored numbers that have the outputs `rows`."""
        unit = INTS if self.packed_dim == 1 else 1
        return slice(rows.start // unit, -(-rows.stop // unit))

    def _stored(
        self, files: QuantisedWeights, name: str, part: TensorPart, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Numbers as they are stored, scales in `dtype` [groups, out], and zeros."""
        out, width = part.whole
        group = self.group_size if self.group_size > 0 else width
        if out % INTS or width % group or group % INTS:
            raise ModelLoadError(
                f"config.json: quantization_config.group_size: {self.group_size} does not fit "
                f"{name} of {out} outputs and {width} inputs; allowed: whole groups, in units of 8"
            )
        self._check_order(files, name, group)
        packed = (1, INTS) if self.packed_dim == 0 else (INTS, 1)
        numbers = files.read_stored(f"{name}.qweight", _stored(part, packed, True), torch.int32)
        scales = files.read_stored(f"{name}.scales", _stored(part, (1, group), True), dtype)
        return numbers, scales, self._zeros(files, name, _stored(part, (INTS, group), True))

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
        self._pending: list[Callable[[], None]] = []
        """Functions that give tensors their values once the stored ones have been read."""

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """See `WeightSource`; raises what `Checkpoint.find` raises."""
        module = self._format.module(name)
        if not self._is_quantised(name, module, part):
            return self._source.read(name, part, dtype)
        covering = _covering(part, self._format.units(part)[part.dim])
        fill = self._format.read(self, module, covering)
        target = torch.empty(part.shape, dtype=dtype, device=self._device)
        self._pending.append(partial(_fill, fill, target, part, covering))
        return target

    def read_packed(self, name: str, part: TensorPart) -> PackedMatrix | None:
        """Like `read`, a matrix that stays packed: a part [out, in] of [out, in], or [experts, out,
        in] of [experts, in, out]. None: the tensor is not quantised.

        Raises:
            ModelLoadError: what `read` raises, and where a group of inputs would be cut.
        """
        module = self._format.module(name)
        if not self._is_quantised(name, module, part):
            return None
        covering = _covering(part, self._format.units(part)[part.dim])
        if covering != part and part.dim != 0:
            raise ModelLoadError(
                f"config.json: quantization_config: {self._format}: inputs {part.begin} to "
                f"{part.begin + part.length} of {module} are not whole groups"
            )
        matrix, complete = self._format.pack(self, module, covering)
        self._pending.append(complete)
        begin = part.begin - covering.begin
        return matrix if covering == part else matrix[begin : begin + part.length]

    def _is_quantised(self, name: str, module: str, part: TensorPart) -> bool:
        if not module or len(part.whole) == 1:
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

    def type_of(self, name: str) -> str | None:
        """Type of a tensor as its file names it; None: there is no such tensor."""
        stored = self._checkpoint.stored(name)
        return None if stored is None else stored.dtype

    def settle(self) -> None:
        """See `WeightSource`."""
        self._source.settle()
        pending, self._pending = self._pending, []
        for complete in pending:
            complete()

    def unread(self) -> list[str]:
        """See `WeightSource`."""
        unread = self._source.unread()
        return [name for name in unread if not name.split(" in ")[0].endswith(UNUSED)]


def _fill(fill: Fill, target: Tensor, part: TensorPart, covering: TensorPart) -> None:
    """Fills the target with its part of the values that were read."""
    if covering == part:
        fill(target)
        return
    whole = target.new_empty(covering.shape)
    fill(whole)
    target.copy_(whole.narrow(part.dim, part.begin - covering.begin, part.length))


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
