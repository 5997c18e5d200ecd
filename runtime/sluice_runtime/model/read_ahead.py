"""Reads files into the page cache, several blocks at once.

Otherwise the first step that needs weights in mapped files reads them page by page, slower than the
disk could, and without reporting progress.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.load_progress import LoadProgress

BLOCK_BYTES: Final = 8 << 20
READERS: Final = 8
"""Number of threads: a disk answers several requests at once faster than one by one."""


@dataclass(frozen=True)
class _Block:
    path: Path
    descriptor: int
    offset: int


def read_ahead(paths: Sequence[Path], progress: LoadProgress) -> None:
    """Reads all files, then returns. Takes one block of memory for each thread.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    own = threading.local()

    def read(block: _Block) -> int:
        if not hasattr(own, "buffer"):
            own.buffer = bytearray(BLOCK_BYTES)
        try:
            return os.preadv(block.descriptor, [own.buffer], block.offset)
        except OSError as error:
            raise ModelLoadError(
                f"model.uri: {block.path} cannot be read at byte {block.offset}: {error.strerror}"
            ) from None

    with ExitStack() as stack:
        blocks = list(_blocks(paths, stack))
        readers = ThreadPoolExecutor(READERS, "read-ahead")
        stack.callback(readers.shutdown, cancel_futures=True)
        for size in readers.map(read, blocks):
            progress.read(size)
    progress.finished()


def _blocks(paths: Sequence[Path], stack: ExitStack) -> Iterator[_Block]:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        for offset in range(0, os.fstat(descriptor).st_size, BLOCK_BYTES):
            yield _Block(path, descriptor, offset)
