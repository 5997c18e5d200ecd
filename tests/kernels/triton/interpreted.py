"""Runs the Triton kernels in Triton's interpreter, beside their references, case by case.

`python -m tests.kernels.triton.interpreted` prints one JSON object: what went wrong in each case,
or null. It wants a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import torch
from sluice_kernels import reference
from sluice_kernels.triton import calls

from tests.kernels.triton.sampled_rows import (
    KINDS,
    assert_sampled,
    parameters_of_kind,
    rows_of_kind,
)

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

    count_to_numbers_of_one_element()
    kernel = getattr(kernels, call.kernel)
    kernel[call.grid](**call.arguments, **call.constants)


@cache
def count_to_numbers_of_one_element() -> None:
    """The interpreter hands numbers over as arrays of one element, of which numpy since 2.4 makes
    no integer, as `range` needs."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


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


def sampled(kind: str, dtype: torch.dtype, vocabulary: int, block: int) -> None:
    torch.manual_seed(vocabulary)
    logits = rows_of_kind(kind, vocabulary, 5).to(dtype)
    parameters = parameters_of_kind(kind, vocabulary, len(logits))
    tokens = torch.full((len(logits),), 7)
    run(replace(calls.sample_rows(logits, parameters, tokens), constants={"BLOCK": block}))
    assert_sampled(tokens, logits, parameters)


def cases() -> Iterator[tuple[str, Case]]:
    odd = {64: 1, 80: 3, 96: 2, 128: 7}
    for (dtype, dim), normed in itertools.product(itertools.product(WITHIN, odd), (False, True)):
        ids = torch.int64 if normed else torch.int32
        name = f"rotate_and_store-{dtype}-{dim}-{'normed' if normed else 'plain'}"
        yield name, partial(rotated, dtype, dim, normed, odd[dim], ids)
    # Several blocks of which the last is not full, several full ones, one.
    sizes = zip(WITHIN, ((600, 256), (64, 16), (259, 512)), strict=True)
    for (dtype, size), kind in itertools.product(sizes, KINDS):
        yield f"sample_rows-{dtype}-{kind}", partial(sampled, kind, dtype, *size)


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
