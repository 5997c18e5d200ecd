"""The small kernels agree with their references; instruction sets are picked and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sluice_kernels import native, reference
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
SIZES = pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 512), (200, 100), (64, 1536)])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def assert_close(actual: Tensor, wanted: Tensor, isa: str) -> None:
    within = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(
        actual, wanted, atol=within, rtol=within, msg=lambda text: f"{isa}: {text}"
    )


@DTYPES
@SIZES
def test_rms_norm(isas: Iterator[str], rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, width).to(dtype), torch.rand(width).to(dtype)
    wanted = reference.rms_norm(x, weight, 1e-6)
    for isa in isas:
        assert_close(native.rms_norm(x, weight, 1e-6), wanted, isa)


@DTYPES
@SIZES
def test_add_rms_norm_keeps_the_sum(
    isas: Iterator[str], rows: int, width: int, dtype: torch.dtype
) -> None:
    x, delta = torch.randn(2, rows, width).to(dtype)
    weight, wanted_sum = torch.rand(width).to(dtype), x.clone()
    wanted = reference.add_rms_norm(wanted_sum, delta, weight, 1e-6)
    for isa in isas:
        kept = x.clone()
        assert_close(native.add_rms_norm(kept, delta, weight, 1e-6), wanted, isa)
        assert torch.equal(kept, wanted_sum), isa


@DTYPES
@SIZES
def test_silu_and_multiply(isas: Iterator[str], rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * width).mul(10).to(dtype)
    gate_up[0, 0], gate_up[0, 1] = 500, -500
    wanted = reference.silu_and_multiply(gate_up)
    for isa in isas:
        assert_close(native.silu_and_multiply(gate_up), wanted, isa)


@DTYPES
@pytest.mark.parametrize(
    ("rows", "out", "width"),
    [(0, 64, 64), (1, 64, 64), (3, 70, 33), (17, 200, 96), (300, 130, 600)],
)
def test_int8_product(
    isas: Iterator[str], rows: int, out: int, width: int, dtype: torch.dtype
) -> None:
    x = torch.randn(rows, width).to(dtype)
    values = torch.randint(-127, 128, (out, width), dtype=torch.int8)
    scales = torch.rand(out) / 127 / width**0.5
    matrix, wanted = native.pack_int8(values, scales), reference.int8_product(x, values, scales)
    for isa in isas:
        assert_close(native.int8_product(x, matrix), wanted, isa)


def test_rows_of_an_int8_product_do_not_depend_on_each_other(isas: Iterator[str]) -> None:
    x = torch.randn(20, 128).bfloat16()
    x[1], x[2, 5], x[3] = 0, float("nan"), x[3] * 1e30
    values = torch.randint(-127, 128, (64, 128), dtype=torch.int8)
    matrix = native.pack_int8(values, torch.ones(64))
    for isa in isas:
        product = native.int8_product(x, matrix)
        assert product[1].eq(0).all(), isa
        assert product.isnan().any(1).nonzero().flatten().tolist() == [2], isa
        for row in range(20):
            alone = native.int8_product(x[row : row + 1], matrix)
            assert torch.equal(alone[0].nan_to_num(), product[row].nan_to_num()), (isa, row)


def test_a_matrix_of_other_inputs_is_refused() -> None:
    matrix = native.pack_int8(torch.ones(8, 128, dtype=torch.int8), torch.ones(8))
    with pytest.raises(RuntimeError, match="does not fit weights"):
        native.int8_product(torch.ones(1, 64), matrix)


def test_what_is_no_number_stays_none(isas: Iterator[str]) -> None:
    x = torch.ones(2, 32, dtype=torch.bfloat16)
    x[1, 3] = float("nan")
    for isa in isas:
        seen = native.silu_and_multiply(x).isnan().any(1)
        assert seen.tolist() == [False, True], isa
        assert native.rms_norm(x, x[0], 1e-6).isnan().all(1).tolist() == [False, True], isa


@pytest.mark.parametrize("vocabulary", [1, 5, 259, 16_384])
def test_a_cold_draw_is_the_first_of_the_largest(isas: Iterator[str], vocabulary: int) -> None:
    """And no token where there is no distribution, at any temperature."""
    logits = torch.randint(-9, 9, (40, vocabulary)).float()
    logits[3] = float("-inf")
    logits[[5, 6], [vocabulary // 2, vocabulary - 1]] = float("nan")
    logits[7, vocabulary // 3] = float("inf")
    uniforms = torch.rand(40, dtype=torch.float64)
    temperatures = torch.where(torch.arange(40) % 2 == 0, 0.0, 1e-6)
    broken = [3, 5, 6, 7]
    first = [
        -1 if row in broken else logits[row].tolist().index(logits[row].max()) for row in range(40)
    ]
    assert reference.draw(logits, temperatures, uniforms, 1e-5).tolist() == first
    for isa in isas:
        assert native.draw(logits, temperatures, uniforms, 1e-5).tolist() == first, isa
        warm = native.draw(logits, torch.ones(40), uniforms, 1e-5)
        assert (warm == -1).nonzero().squeeze(1).tolist() == broken, isa


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (64, 16_384)])
def test_widening_is_exact(isas: Iterator[str], shape: tuple[int, int]) -> None:
    x = torch.randn(shape).bfloat16()
    for isa in isas:
        assert torch.equal(native.to_float(x), x.float()), isa
        assert torch.equal(native.to_float(x.double()), x.float()), isa


@pytest.mark.parametrize("vocabulary", [5, 259, 16_384])
@pytest.mark.parametrize("temperature", [0.05, 0.6, 2.0])
def test_draws_are_the_distributions(
    isas: Iterator[str], vocabulary: int, temperature: float
) -> None:
    """A draw may differ from the reference only by its neighbour in the distribution: rounding."""
    rows = 100
    logits = torch.randn(rows, vocabulary) * 3
    logits[:, vocabulary // 2] = float("-inf")
    temperatures = torch.full((rows,), temperature)
    uniforms = torch.rand(rows, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-53])
    wanted = reference.draw(logits, temperatures, uniforms, 1e-5)
    probability = (logits.double() / temperature).softmax(-1)
    cumulated = probability.cumsum(-1)
    for isa in isas:
        actual = native.draw(logits, temperatures, uniforms, 1e-5)
        upto = cumulated.gather(1, actual[:, None]).squeeze(1)
        own = probability.gather(1, actual[:, None]).squeeze(1)
        assert (own > 0).all(), isa
        assert ((upto - own - 1e-6 <= uniforms) & (uniforms <= upto + 1e-6)).all(), isa
        assert (actual == wanted).float().mean() > 0.9, isa


def test_a_set_that_is_not_there_is_refused(isas: Iterator[str]) -> None:
    for isa in isas:
        assert native.isa() == isa
        with pytest.raises(RuntimeError, match="isa: 'mmx' is not allowed; allowed: generic"):
            native.use_isa("mmx")
        assert native.isa() == isa


def test_a_library_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    missing = native.load(tmp_path / "_native.so")
    assert missing is not None
    assert missing.message == "_native.so was not built"
    (tmp_path / "broken.so").write_bytes(b"no library")
    broken = native.load(tmp_path / "broken.so")
    assert broken is not None
    assert "broken.so cannot be loaded" in broken.message
