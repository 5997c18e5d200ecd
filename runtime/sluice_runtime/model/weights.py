"""Where weights come from: safetensors files read by mmap, or random numbers.

Knows names, shapes and files; not what a tensor is for. Every finding names the file, the tensor
and both shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model_files import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

Shape = tuple[int, ...]


class WeightSource(Protocol):
    """Gives each tensor of a model once."""

    def read(self, name: str, shape: Shape) -> Tensor:
        """The tensor in its stored type, possibly mapped from its file, which it keeps open.

        A new file of that name is not seen; one that is written into is.
        """
        ...

    def unread(self) -> list[str]:
        """Names of tensors that were not read."""
        ...


class RandomWeights:
    """Weights of a model that was never trained: normal(0, 0.02), norms near 1."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def read(self, name: str, shape: Shape) -> Tensor:
        """See `WeightSource`; depends on the seed and the order of the calls."""
        drawn = torch.randn(shape, generator=self._generator) * 0.02
        return drawn + 1.0 if name.endswith("norm.weight") else drawn

    def unread(self) -> list[str]:
        """None: a tensor exists only once it is read."""
        return []


class SafetensorsWeights:
    """The tensors of a Hugging Face folder, one file or several with an index."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}
        self._where = _tensor_files(folder)
        self._unread = dict.fromkeys(self._where)
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, name: str, shape: Shape) -> Tensor:
        """See `WeightSource`.

        Raises:
            ModelLoadError: the tensor is missing, of another shape, or its file is damaged.
        """
        if name not in self._where:
            raise ModelLoadError(
                f"model.uri: {self._folder}: tensor {name} is missing; wanted shape {list(shape)}"
            )
        path = self._where[name]
        self._unread.pop(name, None)
        try:
            tensor: Tensor = self._open(path).get_tensor(name)
        except SafetensorError as error:
            raise ModelLoadError(f"model.uri: {path}: tensor {name}: {error}") from None
        if tensor.shape != shape:
            raise ModelLoadError(
                f"model.uri: {path}: tensor {name} has shape {list(tensor.shape)}; "
                f"config.json wants {list(shape)}"
            )
        return tensor

    def unread(self) -> list[str]:
        """See `WeightSource`."""
        return [f"{name} in {self._where[name]}" for name in self._unread]

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            self._files[path] = self._stack.enter_context(_opened(path))
        return self._files[path]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's tensors, by name.

    Raises:
        ModelLoadError: the index, or the only file, cannot be read.
    """
    return sorted(set(_tensor_files(folder).values()))


def _opened(path: Path) -> Any:
    try:
        # safetensors reports every file that it cannot open as missing; the system error is exact.
        path.open("rb").close()
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelLoadError(f"model.uri: {path} is missing") from None
    except PermissionError as error:
        raise ModelLoadError(f"model.uri: {path} cannot be read: {error.strerror}") from None
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"model.uri: {path} is damaged: {error}") from None


def _tensor_files(folder: Path) -> Mapping[str, Path]:
    """The file of each tensor, by its name."""
    index = folder / INDEX
    if index.exists():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict):
            raise ModelLoadError(
                f"model.uri: {index}: weight_map is {places!r}; allowed: an object"
            )
        return {name: folder / _file_name(index, file) for name, file in places.items()}
    path = folder / SINGLE
    with _opened(path) as file:
        return dict.fromkeys(file.keys(), path)


def _file_name(index: Path, file: object) -> str:
    """A name that the folder itself holds: an index leads nowhere else."""
    if not isinstance(file, str) or file in ("", ".", "..") or "/" in file or "\0" in file:
        raise ModelLoadError(
            f"model.uri: {index}: weight_map names {file!r}; allowed: a file beside the index"
        )
    return file
