"""What is installed in the engine's images, by accelerator."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.toolchain.uv import find_uv
from e2e.images.catalog import ROOT

TRACING = {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}


def requirements(accelerator: str, folder: Path) -> tuple[int, str, set[str], set[str]]:
    """Exit code, error, and names of the packages in both files of the step."""
    scripts = {path.name: path.read_text() for path in (ROOT / "images").glob("*.sh")}
    for name in ("engine_requirements.sh", "requirements.sh"):
        text = scripts[name].replace("/opt/build", str(folder)).replace("/locked", str(ROOT))
        (folder / name).write_text(text.replace(">/", f">{folder}/"))
    path = f"{Path(find_uv()).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", folder / "engine_requirements.sh", accelerator],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    found: list[set[str]] = []
    for name in ("requirements.txt", "compiler.txt"):
        file = folder / name
        text = file.read_text() if file.exists() else ""
        found.append(set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)))
    return done.returncode, done.stderr, found[0], found[1]


def test_an_image_for_cpus_has_nothing_of_a_gpu(tmp_path: Path) -> None:
    code, error, names, compiler = requirements("cpu", tmp_path)
    assert (code, error) == (0, "")
    assert {"torch", "mooncake-transfer-engine-non-cuda"} <= names
    assert names >= TRACING
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    assert not names & {"triton", "flashinfer-python"}
    assert not compiler


def test_an_image_for_gpus_has_them_and_no_compiler(tmp_path: Path) -> None:
    code, error, names, compiler = requirements("cuda", tmp_path)
    assert (code, error) == (0, "")
    needed = {"torch", "flashinfer-python", "mooncake-transfer-engine-cuda13", "nvidia-ml-py"}
    assert needed | TRACING | {"triton", "nvidia-cublas", "nvidia-nccl-cu13"} <= names
    assert "mooncake-transfer-engine-non-cuda" not in names
    assert "nvidia-cuda-nvcc" in compiler
    assert "nvidia-cuda-nvcc" not in names


@pytest.mark.parametrize("accelerator", ["", "rocm"])
def test_another_accelerator_is_refused_with_what_is_allowed(
    accelerator: str, tmp_path: Path
) -> None:
    code, error, *_ = requirements(accelerator, tmp_path)
    assert code == 1
    assert error == f"ACCELERATOR: {accelerator} is not allowed; allowed: cpu, cuda\n"
