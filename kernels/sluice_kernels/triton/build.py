"""Compiles the GPU kernels ahead: `python -m sluice_kernels.triton.build [FOLDER] [-a 80 90 100]`.

Covers the shapes of common models. Needs no GPU and no compiler but Triton's; takes about a
minute for each architecture. By default FOLDER is where engines look, next to this file. An engine
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

from sluice_kernels.packed import Grouping, Kind, PackedMatrix
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
_INT4_GROUPS: Final = (32, 64, 128)
"""Inputs that share a scale, as AWQ and GPTQ are published; larger ones share programs with 128."""
_FP8_GROUP: Final = 128
"""Inputs that share a scale: those of a block, or all of an output, which share the program."""
_WIDE: Final = 4096
_ROWS: Final = (1, 64, 65)
"""Rows of products: one for each tile."""
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
    yield from products()
    yield from around_experts()


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


def products() -> Iterator[Program]:
    """Programs of products with packed weights, whatever their sizes: dense matrices and experts
    in FP8 and INT4, experts in MXFP4 and in plain numbers."""
    for dtype, rows in itertools.product(DTYPES, _ROWS):
        fp8, *int4 = _meta_fp8(), *(_meta_int4(group, torch.float16) for group in _INT4_GROUPS)
        for matrix in (fp8, *int4):
            yield from grouped(matrix, dtype, rows, biased=False)
        if dtype is torch.bfloat16:
            int4 += [_meta_int4(group, torch.float32) for group in _INT4_GROUPS]
        for matrix, biased in itertools.product((fp8, *int4), (True, False)):
            yield product(matrix, dtype, rows, biased)
        blocks = _meta(64, _WIDE // 2, dtype=torch.uint8), _meta(64, _WIDE // 32, dtype=torch.uint8)
        yield from grouped(PackedMatrix(Kind.MXFP4, *blocks), dtype, rows, biased=True)
        plain = PackedMatrix(Kind.PLAIN, _meta(64, _WIDE, dtype=dtype))
        for biased in (True, False):
            yield from grouped(plain, dtype, rows, biased)


def _meta_fp8() -> PackedMatrix:
    numbers = _meta(64, _WIDE, dtype=torch.uint8)
    return PackedMatrix(Kind.FP8, numbers, _meta(64, _WIDE // _FP8_GROUP, dtype=torch.float32))


def _meta_int4(group: int, scales: torch.dtype) -> PackedMatrix:
    """Scales are float16, or float32 if they were stored otherwise."""
    numbers, groups = _meta(64, _WIDE // 2, dtype=torch.uint8), (64, _WIDE // group)
    zeros = _meta(*groups, dtype=torch.uint8)
    return PackedMatrix(Kind.INT4, numbers, _meta(*groups, dtype=scales), zeros)


def product(matrix: PackedMatrix, dtype: torch.dtype, rows: int, biased: bool) -> Program:
    """Program of a product with one matrix [out, in]."""
    outs, width = matrix.shape
    bias = _meta(outs, dtype=dtype) if biased else None
    x, out = _meta(rows, width, dtype=dtype), _meta(rows, outs, dtype=dtype)
    return calls.packed_product(x, matrix, bias, out).program()


def grouped(matrix: PackedMatrix, dtype: torch.dtype, rows: int, biased: bool) -> Iterator[Program]:
    """Programs of a part of experts, before and after the activation. `matrix`: that of one expert;
    `rows`: those of one expert."""
    outs, width = matrix.shape
    stacked = matrix.view(1, outs)
    count, order = _meta(1, dtype=torch.int32), _meta(rows, dtype=torch.int32)
    bias = _meta(1, outs, dtype=dtype) if biased else None
    x, out = _meta(rows, width, dtype=dtype), _meta(rows, outs, dtype=dtype)
    for grouping in (Grouping(count, reads=order), Grouping(count, writes=order)):
        yield calls.packed_product(x, stacked, bias, out, grouping).program()


def around_experts() -> Iterator[Program]:
    """Programs of a part of experts besides its products, for up to 256 experts of which a token
    has up to 8."""
    number = _meta(1, 8, dtype=torch.int32)
    yield calls.sort_by_expert(number, number, number).program()
    for dtype in DTYPES:
        logits, shares, wide = _meta(1, 8, dtype=dtype), number.to(dtype), _meta(1, 64, dtype=dtype)
        for renormalised in (True, False):
            yield calls.choose_experts(logits, number, shares, renormalised).program()
        yield calls.clamped_swiglu(wide, wide[:, :32], 1.0, 1.0).program()


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
