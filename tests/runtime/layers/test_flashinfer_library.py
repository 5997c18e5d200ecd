"""Whether flashinfer can be used: installed, of the right version, its kernels built."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sluice_kernels import flashinfer_ahead
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.layers import flashinfer_library
from sluice_runtime.layers.flashinfer_library import VERSION, flashinfer_state
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement
from sluice_runtime.model.load import load_model
from sluice_runtime.model.load_progress import LoadProgress
from sluice_runtime.model.shard import Shard, Split
from sluice_runtime.model.streamed_weights import StreamedWeights
from sluice_runtime.model.weights import Checkpoint

from benchmarks.load_weights import NoCopies

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


def test_weights_are_read_while_flashinfer_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import of a module that waits holds no lock that reading needs."""
    module = (
        "import sys\nsys.modules['gate'].begun.set()\nsys.modules['gate'].may_end.wait(30)\n"
        "fast_decode_plan = 'plan'\n"
    )
    (tmp_path / "flashinfer.py").write_text(module)
    gate: Any = ModuleType("gate")
    gate.begun, gate.may_end = Event(), Event()
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(flashinfer_ahead, "use_built", lambda: None)
    save_file({"a": torch.ones(300, 40)}, tmp_path / "model.safetensors")
    library: Any = flashinfer_library.flashinfer_library(torch.device("cpu"))
    try:
        assert gate.begun.wait(30)
        with (
            Checkpoint(tmp_path) as checkpoint,
            StreamedWeights(checkpoint, NoCopies(), LoadProgress(1), 4096) as weights,
        ):
            read = weights.read("a", Shard().part((300, 40), Split.NONE), torch.float32)
            weights.settle()
        assert read.shape == (300, 40)
    finally:
        gate.may_end.set()
    assert library.fast_decode_plan == "plan"
    del sys.modules["flashinfer"]


def test_what_the_import_of_flashinfer_raised_is_raised_by_its_first_use() -> None:
    def load() -> None:
        raise ImportError("no such library")

    library = flashinfer_library.LateModule(load)
    with pytest.raises(ImportError, match="no such library"):
        _ = library.fast_decode_plan


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        ("qwen3-tiny", "silu_and_mul (not built ahead), "),
        ("gemma3-tiny", "gelu_tanh_and_mul (not built ahead), "),
        ("gpt-oss-tiny", "norm (not built ahead), "),
    ],
)
def test_a_model_needs_the_module_of_its_own_activation_alone(
    model: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpt-oss's own activation is torch's."""
    unbuilt = {missing.partition(" ")[0], *flashinfer_ahead.ACTIVATIONS}

    def obstacle(name: str, *_: object) -> str | None:
        return "not built ahead" if name in unbuilt else None

    monkeypatch.setattr(flashinfer_ahead, "_obstacle", obstacle)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    files = resolve(f"dummy://{model}")
    files = replace(files, config={**files.config, "head_dim": 64})
    place = Placement(torch.device("cuda"))
    with pytest.raises(InvalidConfigError, match=f"flashinfer lacks {re.escape(missing)}"):
        load_model(files, "bfloat16", 0, "flashinfer", place)


def test_kernels_that_were_not_built_are_told_unless_a_compiler_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = str(flashinfer_state(*H200).missing)
    assert missing.startswith("flashinfer lacks batch_decode_with_kv_cache_dtype_q_bf16_")
    assert missing.endswith("(not built ahead) and 3 more, and there is no nvcc to compile it")
    of_8_bits = flashinfer_state(*H200, fp8_pages=True)
    assert "dtype_kv_e4m3" in str(of_8_bits.missing)
    assert of_8_bits.fa3_missing is None
    assert flashinfer_state("float32", 128, (9, 0)).missing == "flashinfer does not compute float32"
    monkeypatch.setattr(flashinfer_ahead, "find_compiler", lambda: "nvcc")
    state = flashinfer_state(*H200)
    assert (state.missing, state.to_compile, state.compiler) == (None, 4, True)
    assert str(state.fa3_missing).endswith("_sm90 (not built ahead)")
    assert flashinfer_state("bfloat16", 128, (8, 0)).fa3_missing is None
