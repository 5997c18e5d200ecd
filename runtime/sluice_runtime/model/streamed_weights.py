"""Reads safetensors files to a device: threads read blocks from disk into buffers; buffers are
copied while the next blocks are read.

Host memory holds only buffers, no tensors. If long runs of a part are contiguous in the file, as
for rows, only these are read. If runs are short, as for columns, whole rows are read and cut on the
device, since another read and copy would cost more than the bytes. Values are also converted on the
device. Format: 8 bytes with the length of a JSON header (little-endian), the header, then data at
the offsets in it (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self

import torch
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.load_progress import LoadProgress
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.staging import Copies, Rows, StagingBuffer
from sluice_runtime.model.weights import STORED_DTYPES, Checkpoint

BLOCK_BYTES: Final = 8 << 20
READERS: Final = 8
"""Number of threads: a solid-state disk answers several requests at once faster than one by one."""
BUFFERS: Final = 12
"""Number of buffers: more than readers, so that a reader has another buffer while its last one is
copied."""

SHORT_BYTES: Final = 256 << 10
"""Length of runs below which they are read together with the bytes between them: about what disk
and bus move in the time of another read and copy."""

_LENGTH_BYTES: Final = 8


@dataclass(frozen=True)
class _File:
    """An open file, its header, and the offset where its data begins."""

    path: Path
    descriptor: int
    tensors: dict[str, Any]
    data_begin: int


class StreamedWeights:
    """See `model.weights.WeightSource`. Used in one thread; its own threads end with the context.

    Raises from `read` what `Checkpoint.find` raises, and from `settle` a ModelLoadError for a file
    that cannot be read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        copies: Copies,
        progress: LoadProgress,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._checkpoint = checkpoint
        self._copies = copies
        self._progress = progress
        self._block_bytes = block_bytes
        self._files: dict[Path, _File] = {}
        self._pending: list[tuple[Future[None], int]] = []
        """Blocks that are being read, with their bytes."""
        self._free: SimpleQueue[StagingBuffer] = SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, "weights")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for _ in range(BUFFERS):
            self._free.put(StagingBuffer(self._block_bytes, self._copies))
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._copies.finish()
        self._stack.close()
        self._progress.finished()

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """See `model.weights.WeightSource`."""
        path, _ = self._checkpoint.find(name, part.whole, dtype)
        file = self._open(path)
        target = torch.empty(part.shape, dtype=dtype, device=self._copies.device)
        # The memory may be of a freed tensor that the device still reads.
        self._copies.follow()
        left = target.view(-1)
        for rows in _blocks(file, name, part, self._block_bytes):
            count, width = rows.length // (rows.width * rows.dtype.itemsize), rows.wanted
            block, left = left[: count * width].view(count, width), left[count * width :]
            self._pending.append((self._readers.submit(self._move, file, rows, block), rows.length))
        return target

    def settle(self) -> None:
        """See `model.weights.WeightSource`."""
        pending, self._pending = self._pending, []
        for future, size in pending:
            future.result()
            self._progress.read(size)
        self._copies.finish()

    def unread(self) -> list[str]:
        """See `model.weights.WeightSource`."""
        return self._checkpoint.unread()

    def _move(self, file: _File, rows: Rows, target: Tensor) -> None:
        buffer = self._free.get()
        try:
            buffer.fill(file.descriptor, rows)
            buffer.copy(rows, target)
        except OSError as error:
            raise ModelLoadError(
                f"model.uri: {file.path} cannot be read at byte {rows.offset}: {error}"
            ) from None
        finally:
            self._free.put(buffer)

    def _open(self, path: Path) -> _File:
        """The opened file; `Checkpoint` has checked before that it is complete."""
        if path not in self._files:
            descriptor = os.open(path, os.O_RDONLY)
            self._stack.callback(os.close, descriptor)
            header_bytes = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
            tensors = json.loads(os.pread(descriptor, header_bytes, _LENGTH_BYTES))
            self._files[path] = _File(path, descriptor, tensors, _LENGTH_BYTES + header_bytes)
        return self._files[path]


def _blocks(file: _File, name: str, part: TensorPart, block_bytes: int) -> Iterator[Rows]:
    """Rows to read for a part, in its order, each time as many as a buffer holds. In the file the
    part is in runs of `run` values, one run in each `line` values."""
    entry = file.tensors[name]
    dtype = STORED_DTYPES[entry["dtype"]]
    first, size = file.data_begin + entry["data_offsets"][0], dtype.itemsize
    lines, inner = math.prod(part.whole[: part.dim]), math.prod(part.whole[part.dim + 1 :])
    line, run, begin = part.whole[part.dim] * inner, part.length * inner, part.begin * inner
    most = block_bytes // size
    if not lines * run:
        return
    if run == line:  # each run begins where the previous one ends
        lines, line, run = 1, lines * line, lines * run
    if lines > 1 and run * size < SHORT_BYTES and line <= most:
        for at in range(0, lines, most // line):
            length = min(most // line, lines - at) * line * size
            yield Rows(first + at * line * size, length, dtype, line, slice(begin, begin + run))
        return
    for start in range(begin, lines * line, line):
        for at in range(start, start + run, most):
            width = min(most, start + run - at)
            yield Rows(first + at * size, width * size, dtype, width, slice(0, width))
