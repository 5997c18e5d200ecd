"""The pool's layout and its gathers."""

from __future__ import annotations

import torch
from sluice_runtime.kv.pool import KvShape, PagePool

SHAPE = KvShape(layers=3, kv_heads=2, head_dim=4, dtype=torch.float32)


def test_a_page_is_one_contiguous_piece() -> None:
    pool = PagePool(SHAPE, pages=5, page_size=2)
    assert pool.data.shape == (6, 3, 2, 2, 2, 4)
    assert pool.data[3].is_contiguous()
    assert pool.data[3].numel() * 4 == SHAPE.bytes_per_token * 2


def test_written_keys_and_values_are_gathered_in_token_order() -> None:
    pool = PagePool(SHAPE, pages=5, page_size=2)
    keys, values = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    # Tokens 0, 1 in page 4; token 2 in page 1.
    pool.write(2, torch.tensor([4, 4, 1]), torch.tensor([0, 1, 0]), keys, values)
    got_keys, got_values = pool.gather(2, torch.tensor([[4, 1], [1, pool.padding_page]]))
    assert got_keys.shape == (2, 4, 2, 4)
    assert torch.equal(got_keys[0, :3], keys)
    assert torch.equal(got_values[0, :3], values)
    assert torch.equal(got_values[1, 0], values[2])
    assert not got_keys[1, 2:].any(), "padding is zero"
    other_layer, _ = pool.gather(1, torch.tensor([4]))
    assert not other_layer.any()


def test_clearing_a_page_clears_all_its_layers_and_no_other_page() -> None:
    pool = PagePool(SHAPE, pages=3, page_size=2)
    pool.data.fill_(1.0)
    pool.clear(torch.tensor([1]), float("nan"))
    assert pool.data[1].isnan().all()
    assert not pool.data[[0, 2]].isnan().any()
    pool.clear(torch.tensor([1]))
    assert not pool.data[1].any()
