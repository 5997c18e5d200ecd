"""The pool's layout and its gathers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sluice_runtime.kv.pool import FP8, KvScales, KvShape, PagePool

SHAPE = KvShape(layers=3, kv_heads=2, head_dim=4, dtype=torch.float32)
ONES = KvScales(torch.ones(3, 2), torch.ones(3, 2))
SCALES = KvScales(torch.rand(3, 2) + 0.5, torch.rand(3, 2) / 100 + 0.001)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scales", [ONES, SCALES], ids=["ones", "one a head"])
def test_of_8_bits_what_is_gathered_is_what_was_written_cast_by_hand(
    scales: KvScales, dtype: torch.dtype
) -> None:
    pool = PagePool(replace(SHAPE, dtype=dtype, scales=scales), pages=5, page_size=2)
    assert pool.data.dtype is FP8
    assert (
        pool.page_bytes * dtype.itemsize
        == PagePool(replace(SHAPE, dtype=dtype), pages=5, page_size=2).page_bytes
    ), "as many bytes as a page has numbers"
    written = (10 * torch.randn(2, 3, 2, 4)).to(dtype)
    pool.write(2, torch.tensor([4, 4, 1]), torch.tensor([0, 1, 0]), *written)
    gathered = pool.gather(2, torch.tensor([4, 1]))
    for numbers, got, by_layer in zip(written, gathered, (scales.keys, scales.values), strict=True):
        scale = by_layer[2][:, None]
        stored = (numbers.float() / scale).clamp(-448, 448).to(FP8)
        assert got.dtype is dtype
        assert torch.equal(got[:3], (stored.float() * scale).to(dtype))
        assert not got[3].any()


def test_of_8_bits_what_is_too_large_is_the_largest_and_no_number_stays_none() -> None:
    pool = PagePool(replace(SHAPE, scales=ONES), pages=1, page_size=1)
    one = torch.tensor([[[1e6, -449.0, 448.0, float("nan")]] * 2])
    pool.write(0, torch.tensor([0]), torch.tensor([0]), one, one)
    keys, _ = pool.gather(0, torch.tensor([0]))
    assert keys[0, 0, :3].tolist() == [448, -448, 448]
    assert keys[0, 0, 3].isnan()


def test_of_8_bits_a_page_is_cleared_and_poisoned() -> None:
    pool = PagePool(replace(SHAPE, scales=SCALES), 3, 2, draft=replace(SHAPE, scales=ONES))
    pool.poison([1])
    assert pool.gather(0, torch.tensor([1]))[0].isnan().all()
    assert pool.draft is not None
    assert pool.draft.gather(2, torch.tensor([1]))[1].isnan().all()
    assert not pool.gather(0, torch.tensor([0, 2]))[0].any()
    pool.clear(torch.tensor([1]))
    assert not pool.gather(0, torch.tensor([1]))[0].any()
