"""Distinguishes models by their files, without reading these completely, so that a path overwritten
between two starts counts as another model.

The digest covers config.json and, of each weight file, its name, size, header, both ends, and the
beginnings of tensors: training changes every tensor that is trained. It does not protect against
forged files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, BinaryIO, Final

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.model.weights import weight_files

END_BYTES: Final = 64 * 1024
"""Number of bytes read at both ends of a file's data."""
TENSOR_BYTES: Final = 4 * 1024
"""Number of bytes read at the beginning of a tensor."""
MAX_TENSORS: Final = 512
"""Most tensors of one file; of a file with more, this many are taken at equal distances."""
_LENGTH_BYTES: Final = 8
"""Size of the header's length (little-endian) at the beginning of a safetensors file."""


def weights_digest(files: ModelFiles, seed: int, dtype: str, held_as: str = "auto") -> str:
    """Digest of 32 hexadecimal digits. For a model without files it covers the name, `seed` and
    `dtype`. `held_as`: settings such as `weightDtype` under which equal files compute other keys
    and values.

    Raises:
        ModelLoadError: a file cannot be read, or is damaged.
    """
    digest = blake2b(b"" if held_as == "auto" else held_as.encode(), digest_size=16)
    if files.folder is None:
        digest.update(json.dumps([files.uri, seed, dtype]).encode())
        return digest.hexdigest()
    for path in (files.folder / "config.json", *weight_files(files.folder)):
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                digest.update(json.dumps([path.name, size]).encode())
                for start, length in _pieces(file, size):
                    file.seek(start)
                    digest.update(file.read(length))
        except OSError as error:
            raise ModelLoadError(f"model.uri: cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ModelLoadError(f"model.uri: {path} is damaged: {error}") from None
    return digest.hexdigest()


def _pieces(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length in bytes of each piece of a file that is read."""
    if file.name.endswith(".json"):
        yield 0, size
        return
    header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    starts = _tensor_starts(file.read(min(header_bytes, size)))
    begin = _LENGTH_BYTES + header_bytes
    yield 0, begin + END_BYTES
    yield max(begin, size - END_BYTES), END_BYTES
    for start in starts[:: len(starts) // MAX_TENSORS + 1]:
        yield begin + start, TENSOR_BYTES


def _tensor_starts(header: bytes) -> list[int]:
    """Offsets of the tensors in a file's data, ascending.

    Raises:
        ValueError: the bytes are not a valid header.
    """
    tensors: dict[str, Any] = json.loads(header)
    tensors.pop("__metadata__", None)
    return sorted(tensor["data_offsets"][0] for tensor in tensors.values())
