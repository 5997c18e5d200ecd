"""Loading weights to a device, compared with a plain read of the file, each with an empty page
cache.

Prints one JSON line: medians in GB/s, and their ratio. Without `--device cuda` blocks are read into
the buffers as on a GPU, and copied nowhere: the disk and the readers alone are measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from sluice_runtime.model.load_progress import LoadProgress
from sluice_runtime.model.shard import Shard, Split
from sluice_runtime.model.staging import Copies, CudaCopies, Wait
from sluice_runtime.model.streamed_weights import BLOCK_BYTES, StreamedWeights
from sluice_runtime.model.weights import Checkpoint
from torch import Tensor

from benchmarks.turns import report, scaled

SHAPE: Final = (4096, 12_288)
"""Shape of a feed-forward matrix of an 8 B model: 96 MiB in bfloat16."""

LAYER_MATRICES: Final = 4
"""Matrices of this size that weigh as much as a layer of that model."""


class NoCopies:
    """A device to which copying takes no time."""

    device = torch.device("cpu")

    def allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def follow(self) -> None:
        pass

    def begin(self, rows: Tensor, columns: slice, target: Tensor) -> Wait:
        return lambda: None

    def finish(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--matrices", type=int, default=scaled(12))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", choices=("none", "cuda"), default="none")
    parser.add_argument("--folder", help="on the disk to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder, "model.safetensors")
        save_file({f"{i}.weight": matrix(i) for i in range(options.matrices)}, path)
        os.sync()
        runs = [
            (rate(path, read), rate(path, lambda p: streamed(p, options.matrices, options.device)))
            for _ in range(options.runs)
        ]
        size = path.stat().st_size
    plain, loaded = (statistics.median(rates) for rates in zip(*runs, strict=True))
    report(
        "load_weights",
        loaded,
        unit="GB/s",
        to=options.device,
        gigabytes=round(size / 1e9, 2),
        plain_read=round(plain, 2),
        ratio=round(loaded / plain, 2),
    )


def matrix(number: int) -> Tensor:
    return torch.full(SHAPE, number, dtype=torch.bfloat16)


def rate(path: Path, load: Callable[[Path], None]) -> float:
    """Rate of a load in GB/s, from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    started = time.perf_counter()
    load(path)
    return path.stat().st_size / 1e9 / (time.perf_counter() - started)


def read(path: Path) -> None:
    """Reads a file in one thread, in blocks of the loader's size."""
    buffer = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def streamed(path: Path, matrices: int, device: str) -> None:
    copies: Copies = CudaCopies(torch.device("cuda", 0)) if device == "cuda" else NoCopies()
    with (
        Checkpoint(path.parent) as checkpoint,
        StreamedWeights(checkpoint, copies, LoadProgress(checkpoint.size_bytes)) as source,
    ):
        for number in range(matrices):
            source.read(f"{number}.weight", Shard().part(SHAPE, Split.NONE), torch.bfloat16)
            if number % LAYER_MATRICES == LAYER_MATRICES - 1:  # as engines do, once a layer
                source.settle()
        source.settle()


if __name__ == "__main__":
    main()
