"""Compiles the GPU kernels ahead: `python -m sluice_kernels.triton.build [FOLDER] [-a 80 90 100]`.

Covers the shapes of common models. Needs no GPU and no compiler but Triton's; takes about ten
seconds for each architecture. By default FOLDER is where engines look, next to this file. An engine
compiles programs that are not in it at its start, in about a second each; TRITON_CACHE_DIR names
the folder for those.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from sluice_kernels.reference import DecodeTensors
from sluice_kernels.triton import calls
from sluice_kernels.triton.calls import Program
from sluice_kernels.triton.cubins import BUILT, write_folder

ARCHITECTURES: Final = (75, 80, 90, 100)
"""Compute capabilities: T4; A100 and its generation up to 8.9; H100 and H200; B200."""
DTYPES: Final = (torch.bfloat16, torch.float16)
HEAD_DIMS: Final = (64, 128)
FINE_NORM_DIMS: Final = (128, 256)
"""Head dimensions of models whose head norms have weights of float32: those of Gemma 3."""
LOGITS: Final = (torch.float32, *DTYPES)
"""Types of logits: a graph samples from those of the model, other steps convert them first."""


def programs() -> Iterator[Program]:
    """Programs to compile for an image, one for each shape. Their tensors have no data, since only
    types matter."""
    for ids in (torch.int64, torch.int32):
        for dtype in DTYPES:
            for dim, norm in itertools.product(HEAD_DIMS, (dtype, None)):
                yield rotary(dtype, dim, norm, ids)
            for dim in FINE_NORM_DIMS:
                yield rotary(dtype, dim, torch.float32, ids)
    for dtype, vocabulary in itertools.product(LOGITS, (16, 1)):  # a multiple of 16, and another
        yield sampling(dtype, vocabulary)
    yield decoding()


def rotary(dtype: torch.dtype, dim: int, norm: torch.dtype | None, ids: torch.dtype) -> Program:
    """Program for head dimension `dim`, whatever the numbers of heads. norm: type of the head
    norm's weights; None: there is no norm. ids: type of page numbers."""
    angles, place = _meta(1, dim // 2, dtype=torch.float32), _meta(1, dtype=ids)
    weights = None if norm is None else _meta(2, dim, dtype=norm)
    queries = _meta(1, 1, dim, dtype=dtype)
    qkv, pool = _meta(1, 3, dim, dtype=dtype), _meta(2, 1, 2, 16, 1, dim, dtype=dtype)
    return calls.rotate_and_store(
        qkv, weights, 0.0, angles, angles, pool, 0, place, place, queries
    ).program()


def sampling(dtype: torch.dtype, vocabulary: int) -> Program:
    """Program for logits of `dtype`; the vocabulary matters only as a multiple of 16 or not."""
    number, reals = _meta(1, dtype=torch.int32), _meta(3, 1, dtype=torch.float64)
    wholes, tokens = _meta(2, 1, dtype=torch.int64), _meta(1, dtype=torch.int64)
    logits = _meta(1, vocabulary, dtype=dtype)
    return calls.sample_rows(logits, number, number, reals, wholes, tokens).program()


def decoding() -> Program:
    """Program for the inputs of decode steps, of any size."""
    number, token = _meta(1, dtype=torch.int32), _meta(1, dtype=torch.int64)
    table = _meta(1, 1, dtype=torch.int64)
    read = number, number, number, table, token
    step = DecodeTensors(*read, token, token, token, token, number, page_size=16, padding_page=1)
    return calls.decode_inputs(step).program()


def _meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=BUILT)
    parser.add_argument("-a", "--architectures", type=int, nargs="+", default=ARCHITECTURES)
    arguments = parser.parse_args(words)
    count = write_folder(arguments.folder, programs(), arguments.architectures)
    print(f"{count} GPU kernels in {arguments.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
