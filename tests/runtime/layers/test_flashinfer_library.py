"""Whether flashinfer can be used: installed, of the right version, its kernels built."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from sluice_kernels import flashinfer_ahead
from sluice_runtime.layers import flashinfer_library
from sluice_runtime.layers.flashinfer_library import VERSION, flashinfer_state

H200 = ("bfloat16", 128, (9, 0))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right version, on a machine without nvcc; nothing was built ahead."""
    monkeypatch.setattr(flashinfer_library, "version", lambda package: VERSION)
    monkeypatch.setattr(flashinfer_ahead, "find_compiler", lambda: None)
    monkeypatch.setattr(flashinfer_ahead.Manifest, "read", lambda folder: None)


def test_what_is_not_installed_or_of_another_version_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashinfer_library, "version", lambda package: "0.7.0")
    assert flashinfer_state(*H200).missing == "flashinfer 0.7.0 is installed, not 0.6.13"

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(flashinfer_library, "version", version)
    assert "the extra gpu" in str(flashinfer_state(*H200).missing)


def test_kernels_that_were_not_built_are_told_unless_a_compiler_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = str(flashinfer_state(*H200).missing)
    assert missing.startswith("flashinfer lacks batch_decode_with_kv_cache_dtype_q_bf16_")
    assert missing.endswith("(not built ahead) and 4 more, and there is no nvcc to compile it")
    of_8_bits = flashinfer_state(*H200, fp8_pages=True)
    assert "dtype_kv_e4m3" in str(of_8_bits.missing)
    assert of_8_bits.fa3_missing is None
    assert flashinfer_state("float32", 128, (9, 0)).missing == "flashinfer does not compute float32"
    monkeypatch.setattr(flashinfer_ahead, "find_compiler", lambda: "nvcc")
    state = flashinfer_state(*H200)
    assert (state.missing, state.to_compile, state.compiler) == (None, 5, True)
    assert str(state.fa3_missing).endswith("_sm90 (not built ahead)")
    assert flashinfer_state("bfloat16", 128, (8, 0)).fa3_missing is None
