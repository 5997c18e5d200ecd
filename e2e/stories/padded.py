"""A small model with as many bytes as a large one: its weights have a tensor that no model reads.

Standard library only, since the hub's pod makes its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

WEIGHTS: Final = "model.safetensors"
BLOCK_BYTES: Final = 1 << 20
LENGTH_BYTES: Final = 8
"""Bytes of the header's length, with which a safetensors file begins."""


def padded_model(folder: Path, more_bytes: int) -> dict[str, bytes]:
    """The folder's files by name; the weights have `more_bytes` more."""
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    return files | {WEIGHTS: padded(files[WEIGHTS], more_bytes)} if more_bytes else files


def padded(weights: bytes, more_bytes: int) -> bytes:
    """The safetensors file `weights` with `more_bytes` random bytes after its tensors."""
    start = LENGTH_BYTES + int.from_bytes(weights[:LENGTH_BYTES], "little")
    header, tensors = json.loads(weights[LENGTH_BYTES:start]), weights[start:]
    header["padding"] = {
        "dtype": "U8",
        "shape": [more_bytes],
        "data_offsets": [len(tensors), len(tensors) + more_bytes],
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    block = os.urandom(BLOCK_BYTES)
    more = (block * (more_bytes // BLOCK_BYTES + 1))[:more_bytes]
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + tensors + more
