"""The small kernels agree with their references; instruction sets are picked and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sluice_kernels import native, reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
SIZES = pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 512), (200, 100), (64, 1536)])


@pytest.fixture(autouse=True)
def _seed(isa: str) -> None:
    torch.manual_seed(0)


@DTYPES
@SIZES
def test_rms_norm(rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, width).to(dtype), torch.rand(width).to(dtype)
    actual, wanted = (m.rms_norm(x, weight, 1e-6) for m in (native, reference))
    torch.testing.assert_close(actual, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@DTYPES
@SIZES
def test_add_rms_norm_keeps_the_sum(rows: int, width: int, dtype: torch.dtype) -> None:
    x, delta = torch.randn(2, rows, width).to(dtype)
    weight, kept = torch.rand(width).to(dtype), x.clone()
    actual = native.add_rms_norm(x, delta, weight, 1e-6)
    wanted = reference.add_rms_norm(kept, delta, weight, 1e-6)
    torch.testing.assert_close(actual, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(x, kept)


@DTYPES
@SIZES
def test_silu_and_multiply(rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * width).mul(10).to(dtype)
    gate_up[0, 0], gate_up[0, 1] = 500, -500
    actual, wanted = (m.silu_and_multiply(gate_up) for m in (native, reference))
    torch.testing.assert_close(actual, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_what_is_no_number_stays_none() -> None:
    x = torch.ones(2, 32, dtype=torch.bfloat16)
    x[1, 3] = float("nan")
    seen = native.silu_and_multiply(x).isnan().any(1)
    assert seen.tolist() == [False, True]
    assert native.rms_norm(x, x[0], 1e-6).isnan().all(1).tolist() == [False, True]


@pytest.mark.parametrize("vocabulary", [1, 5, 259, 16_384])
def test_best_is_the_first_of_the_largest(vocabulary: int) -> None:
    logits = torch.randint(-9, 9, (40, vocabulary)).float()
    logits[3] = float("-inf")
    broken = [5, 6]
    logits[broken, [vocabulary // 2, vocabulary - 1]] = float("nan")
    logits[7, vocabulary // 3] = float("inf")
    actual, wanted = native.best(logits), reference.best(logits)
    torch.testing.assert_close(actual[0], wanted[0], equal_nan=True)
    whole = [i for i in range(len(logits)) if i not in broken]
    assert actual[1][whole].tolist() == [logits[i].tolist().index(wanted[0][i]) for i in whole]


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (64, 16_384)])
def test_widening_is_exact(shape: tuple[int, int]) -> None:
    x = torch.randn(shape).bfloat16()
    assert torch.equal(native.to_float(x), x.float())
    assert torch.equal(native.to_float(x.double()), x.float())


@pytest.mark.parametrize("vocabulary", [5, 259, 16_384])
@pytest.mark.parametrize("temperature", [0.05, 0.6, 2.0])
def test_draws_are_the_distributions(vocabulary: int, temperature: float) -> None:
    """A draw may differ from the reference only by its neighbour in the distribution: rounding."""
    rows = 300
    logits = torch.randn(rows, vocabulary) * 3
    logits[:, vocabulary // 2] = float("-inf")
    temperatures = torch.full((rows,), temperature)
    uniforms = torch.rand(rows, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-53])
    actual, wanted = (m.draw(logits, temperatures, uniforms) for m in (native, reference))
    probability = (logits.double() / temperature).softmax(-1)
    upto = probability.cumsum(-1).gather(1, actual[:, None]).squeeze(1)
    own = probability.gather(1, actual[:, None]).squeeze(1)
    assert (own > 0).all()
    assert ((upto - own - 1e-6 <= uniforms) & (uniforms <= upto + 1e-6)).all()
    assert (actual == wanted).float().mean() > 0.99


def test_a_set_that_is_not_there_is_refused(isa: str) -> None:
    assert native.isa() == isa
    with pytest.raises(RuntimeError, match="isa: 'mmx' is not allowed; allowed: generic"):
        native.use_isa("mmx")


def test_a_library_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    missing = native.load(tmp_path / "_native.so")
    assert missing is not None
    assert missing.message == "_native.so was not built"
    (tmp_path / "broken.so").write_bytes(b"no library")
    broken = native.load(tmp_path / "broken.so")
    assert broken is not None
    assert "broken.so cannot be loaded" in broken.message
