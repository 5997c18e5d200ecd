"""Our Triton kernels on a GPU compute what their references say, for odd shapes and types."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from sluice_kernels import reference
from sluice_kernels.triton import operators

pytestmark = pytest.mark.gpu

PAGES, LAYERS, PAGE = 7, 3, 16
TYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "dim", "heads", "normed", "tokens"),
    [
        (dtype, dim, heads, normed, tokens)
        for (dtype, dim), (heads, normed), tokens in product(
            product(TYPES, (64, 80, 128)), (((8, 2), True), ((5, 1), False)), (1, 37)
        )
    ],
)
def test_rotation_with_the_kv_write(
    dtype: torch.dtype, dim: int, heads: tuple[int, int], normed: bool, tokens: int
) -> None:
    torch.manual_seed(tokens)
    query, kv = heads
    qkv = torch.randn(tokens, query + 2 * kv, dim, device="cuda").to(dtype)
    norm = torch.rand(query + kv, dim, device="cuda").to(dtype) if normed else None
    angles = torch.rand(tokens, dim // 2, device="cuda") * 6
    pool = torch.zeros(PAGES + 1, LAYERS, 2, PAGE, kv, dim, device="cuda", dtype=dtype)
    slots = torch.randperm(PAGES * PAGE, device="cuda")[:tokens]
    pages, offsets = slots // PAGE, slots % PAGE
    pages[0] = PAGES  # padding: not stored
    ours, theirs = pool.clone(), pool.clone()
    last = (1e-6, angles.cos(), angles.sin())
    found = operators.rotate_and_store(qkv, norm, *last, ours, 1, pages, offsets)
    wanted = reference.rotate_and_store_padded(qkv, norm, *last, theirs, 1, pages, offsets)
    allowed = (
        {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {"rtol": 1e-5, "atol": 1e-5}
    )
    torch.testing.assert_close(found, wanted, **allowed)
    torch.testing.assert_close(ours, theirs, **allowed)


@pytest.mark.parametrize("where", ["cuda", "pinned"])
@pytest.mark.parametrize("ids", [torch.int64, torch.int32])
def test_pages_are_packed_and_unpacked(where: str, ids: torch.dtype) -> None:
    pool = torch.randn(PAGES, LAYERS, 2, PAGE, 2, 64, device="cuda").half()
    page_ids = torch.tensor([5, 0, 3, 99, -1], device="cuda", dtype=ids)
    staging = torch.zeros(8, *pool.shape[1:], dtype=pool.dtype)
    staging = staging.pin_memory() if where == "pinned" else staging.cuda()
    operators.pack_pages(pool, page_ids, staging)
    torch.cuda.synchronize()
    expected = torch.zeros(8, *pool.shape[1:], dtype=pool.dtype, device="cuda")
    reference.pack_pages(pool, page_ids, expected)
    assert torch.equal(staging.cuda(), expected)
    emptied = torch.zeros_like(pool)
    operators.unpack_pages(staging, page_ids, emptied)
    torch.cuda.synchronize()
    assert torch.equal(emptied[[5, 0, 3]], pool[[5, 0, 3]])
    assert not emptied[[1, 2, 4, 6]].any()
