"""Runs the Triton kernels in Triton's interpreter, beside their references, case by case.

`python -m tests.kernels.triton.interpreted` prints one JSON object: what went wrong in each case,
or null. It wants a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from sluice_kernels import reference
from sluice_kernels.triton import calls
from torch import Tensor

LAYERS, PAGES, PAGE = 3, 6, 4
# A number of 16 bits may be rounded to its neighbour: what is compared was computed in 32.
WITHIN: Final = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HEADS: Final = {64: (5, 1), 80: (4, 4), 96: (9, 3), 128: (14, 2)}
"""Query and key heads by head dimension: all in one program, or in several, the last not full."""
# Tokens go to the first and the last page, to padding, and nowhere.
PAGE_IDS: Final = (0, PAGES - 1, PAGES, 3, -1, 1, 999)

Case = Callable[[], None]


def run(call: calls.Call) -> None:
    from sluice_kernels.triton import kernels

    kernel = getattr(kernels, call.kernel)
    kernel[call.grid](**call.arguments, **call.constants)


def rotated(dtype: torch.dtype, dim: int, normed: bool, tokens: int, ids: torch.dtype) -> None:
    torch.manual_seed(dim + tokens)
    heads, kv_heads = HEADS[dim]
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim).mul(3).to(dtype)
    norm = torch.rand(heads + kv_heads, dim).to(dtype) if normed else None
    angles = torch.randn(tokens, dim // 2)
    pool = torch.randn(PAGES + 1, LAYERS, 2, PAGE, kv_heads, dim).to(dtype)
    pages = torch.tensor(PAGE_IDS[:tokens], dtype=ids)
    offsets = torch.arange(tokens, dtype=ids) % PAGE
    wanted_pool, queries = pool.clone(), torch.full((tokens, heads, dim), torch.nan, dtype=dtype)
    before = (qkv, norm, 1e-6, angles.cos(), angles.sin())
    after = (1, pages, offsets)
    wanted = reference.rotate_and_store_padded(*before, wanted_pool, *after)
    run(calls.rotate_and_store(*before, pool, *after, queries))
    within = WITHIN[dtype]
    torch.testing.assert_close(queries, wanted, atol=within, rtol=within)
    torch.testing.assert_close(pool, wanted_pool, atol=within, rtol=within)
    # Values are copied; other layers are not written.
    assert torch.equal(pool[:, :, 1], wanted_pool[:, :, 1])
    assert torch.equal(pool[:, 0], wanted_pool[:, 0])


def copied(dtype: torch.dtype, page_shape: tuple[int, ...], pack: bool) -> None:
    torch.manual_seed(7)
    pool = _numbers((PAGES + 1, *page_shape), dtype)
    page_ids = torch.tensor([PAGES, 2, -1, 0, PAGES + 1])
    staging = _numbers((len(page_ids) + 1, *page_shape), dtype)
    theirs, ours = (staging, pool.clone()), (staging.clone(), pool.clone())
    if pack:
        theirs = (staging.clone(), pool)
        reference.pack_pages(pool, page_ids, theirs[0])
    else:
        reference.unpack_pages(staging, page_ids, theirs[1])
    run(calls.copy_pages(ours[1], page_ids, ours[0], pack))
    for mine, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(mine.view(torch.uint8), wanted.view(torch.uint8))


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Any bits, those of no number too."""
    size = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    return torch.randint(0, 256, (size,), dtype=torch.uint8).view(dtype).view(shape)


def cases() -> Iterator[tuple[str, Case]]:
    odd = {64: 1, 80: 3, 96: 2, 128: 7}
    for (dtype, dim), normed in itertools.product(itertools.product(WITHIN, odd), (False, True)):
        ids = torch.int64 if normed else torch.int32
        name = f"rotate_and_store-{dtype}-{dim}-{'normed' if normed else 'plain'}"
        yield name, partial(rotated, dtype, dim, normed, odd[dim], ids)
    # Less than a block, words no multiple of 16, several blocks.
    shapes = ((1, 2, 1, 1, 4), (1, 2, 5, 1, 80), (3, 2, 4, 3, 128))
    for dtype, shape, pack in itertools.product(WITHIN, shapes, (True, False)):
        name = f"{'pack' if pack else 'unpack'}-{dtype}-{'x'.join(map(str, shape))}"
        yield name, partial(copied, dtype, shape, pack)


def outcome(case: Case) -> str | None:
    try:
        case()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    print(json.dumps({name: outcome(case) for name, case in cases()}))


if __name__ == "__main__":
    main()
