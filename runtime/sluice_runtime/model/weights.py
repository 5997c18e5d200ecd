"""Sources of weights: safetensors files mapped into memory, or random numbers.

Knows names, shapes and files, not what a tensor is for. Every error names the file, the tensor and
both shapes. Reading to a device is in `model.streamed_weights`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from sluice_contract.config.weight_files import INDEX, SINGLE, absent_weights, index_flaw
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.files import lfs_pointer, read_json
from sluice_runtime.model.shard import Shape, TensorPart

STORED_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
}
"""Torch types by their names in safetensors files."""
QUANTISED: Final = (torch.float8_e4m3fn, torch.int32, torch.int64, torch.uint8)
"""Types that are read unchanged, and are not accepted where another type is expected."""


@dataclass(frozen=True)
class StoredTensor:
    """Shape and type of a tensor, as its file states them."""

    shape: Shape
    dtype: str
    """Name of the type in safetensors files."""


class WeightSource(Protocol):
    """Source of a model's tensors; each is read once."""

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """Starts reading a part of a tensor to the source's device; its values are valid after
        `settle`."""
        ...

    def settle(self) -> None:
        """Waits until all tensors read so far have their values."""
        ...

    def unread(self) -> list[str]:
        """Names of tensors that were not read."""
        ...


DRAWN: Final = 1_048_583
"""Most numbers drawn for a tensor, on the host. A larger tensor repeats them on its device: their
values do not matter, and drawing billions would take minutes. A prime number, so that no two rows
are equal."""


class RandomWeights:
    """Random weights, normal(0, 0.02) with norms near 1. They are equal on every device and for
    every number of ranks."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """See `WeightSource`; depends on the seed and the order of the calls."""
        total = math.prod(part.whole)
        drawn = torch.randn(min(total, DRAWN), generator=self._generator) * 0.02
        drawn = drawn + 1.0 if name.endswith("norm.weight") else drawn
        drawn = drawn.to(self._device, dtype)
        if total > DRAWN:
            drawn = drawn.repeat(-(-total // DRAWN))[:total]
        own = drawn.view(part.whole).narrow(part.dim, part.begin, part.length)
        # A view would keep the whole tensor in memory.
        return own if own.numel() == total else own.clone()

    def settle(self) -> None:
        """Does nothing: there is nothing to wait for."""

    def unread(self) -> list[str]:
        """Empty, since a tensor exists only once it is read."""
        return []


class Checkpoint:
    """Safetensors files of a Hugging Face folder: one, or several with an index. All are opened
    first, so that a damaged file is reported before any is read. Tracks which tensors were not
    read."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}
        self._where = _tensor_files(folder)
        self._unread = dict.fromkeys(self._where)
        self._folder = folder

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for path in self.paths:
                self._files[path] = stack.enter_context(_opened(path))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def paths(self) -> list[Path]:
        """Paths of all files, by name."""
        return sorted(set(self._where.values()))

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.paths)

    def find(self, name: str, shape: Shape, dtype: torch.dtype) -> tuple[Path, Any]:
        """File of a tensor that must have `shape` and be readable as `dtype`: its path, and the
        object that safetensors opened.

        Raises:
            ModelLoadError: the tensor is missing, or has another shape or type.
        """
        if (stored := self.stored(name)) is None:
            raise ModelLoadError(
                f"model.uri: {self._folder}: tensor {name} is missing; wanted shape {list(shape)}"
            )
        path = self._where[name]
        self._unread.pop(name, None)
        if stored.shape != shape:
            raise ModelLoadError(
                f"model.uri: {path}: tensor {name} has shape {list(stored.shape)}; "
                f"config.json needs {list(shape)}"
            )
        allowed = [
            stored_as
            for stored_as, known in STORED_DTYPES.items()
            if (known == dtype if dtype in QUANTISED else known not in QUANTISED)
        ]
        if stored.dtype not in allowed:
            raise ModelLoadError(
                f"model.uri: {path}: tensor {name} has type {stored.dtype}; allowed: "
                f"{', '.join(allowed)} as config.json describes it"
            )
        return path, self._files[path]

    def stored(self, name: str) -> StoredTensor | None:
        """Shape and type of a tensor; None: there is no such tensor.

        Raises:
            ModelLoadError: the file that the index names lacks the tensor.
        """
        if name not in self._where:
            return None
        path = self._where[name]
        try:
            tensor = self._files[path].get_slice(name)
            return StoredTensor(tuple(tensor.get_shape()), tensor.get_dtype())
        except SafetensorError as error:
            raise ModelLoadError(f"model.uri: {path}: tensor {name}: {error}") from None

    def small(self, name: str) -> Tensor:
        """A copy of a small tensor, which must exist."""
        self._unread.pop(name, None)
        tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        return tensor.clone()

    def unread(self) -> list[str]:
        """See `WeightSource`."""
        return [f"{name} in {self._where[name]}" for name in self._unread]


class MappedWeights:
    """Tensors in host memory. A large tensor stays in the mapped file if the file has the wanted
    type, so that engines on one node share its memory; it keeps the file open. Replacing the file
    has no effect; writing into it changes the tensor.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """See `WeightSource`; raises what `Checkpoint.find` raises."""
        path, file = self._checkpoint.find(name, part.whole, dtype)
        try:
            tensor: Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise ModelLoadError(f"model.uri: {path}: tensor {name}: {error}") from None
        is_small = tensor.ndim == 1
        return tensor.narrow(part.dim, part.begin, part.length).to(dtype, copy=is_small)

    def settle(self) -> None:
        """Does nothing: there is nothing to wait for."""

    def unread(self) -> list[str]:
        """See `WeightSource`."""
        return self._checkpoint.unread()


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's tensors, by name.

    Raises:
        ModelLoadError: the index, or the only file, cannot be read.
    """
    return sorted(set(_tensor_files(folder).values()))


def _opened(path: Path) -> Any:
    try:
        # safetensors reports every file that it cannot open as missing; the system's error is
        # precise.
        path.open("rb").close()
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelLoadError(f"model.uri: {path} is missing") from None
    except PermissionError as error:
        raise ModelLoadError(f"model.uri: {path} cannot be read: {error.strerror}") from None
    except (SafetensorError, OSError) as error:
        flaw = lfs_pointer(path) or f"is damaged: {error}"
        raise ModelLoadError(f"model.uri: {path} {flaw}") from None


def _tensor_files(folder: Path) -> Mapping[str, Path]:
    """The file of each tensor, by its name."""
    index = folder / INDEX
    if index.exists():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict):
            raise ModelLoadError(
                f"model.uri: {index}: weight_map is {places!r}; allowed: an object"
            )
        files = {name: folder / _file_name(index, file) for name, file in places.items()}
        there = {path.name for path in {*files.values(), folder / SINGLE} if os.path.exists(path)}
        if flaw := index_flaw(places, there):
            raise ModelLoadError(f"model.uri: {folder}: {flaw}")
        return files
    path = folder / SINGLE
    if hint := absent_weights(os.listdir(folder) if os.access(folder, os.R_OK) else [SINGLE]):
        raise ModelLoadError(f"model.uri: {path} is missing; {hint}")
    with _opened(path) as file:
        return dict.fromkeys(file.keys(), path)


def _file_name(index: Path, file: object) -> str:
    """The file's name, which must be in the folder itself: an index may not lead elsewhere."""
    if not isinstance(file, str) or file in ("", ".", "..") or "/" in file or "\0" in file:
        raise ModelLoadError(
            f"model.uri: {index}: weight_map names {file!r}; allowed: a file beside the index"
        )
    return file
