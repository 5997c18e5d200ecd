"""GPUs on which engines do not run, or run slowly: the same from `sluice plan` and `explain`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.config.accelerators import PRODUCTS, has_kernels
from sluice_contract.wire.explain import Answer, Question
from sluice_kernels.architectures import built_for
from sluice_operator.cli.explain.command import run as explain
from sluice_operator.cli.main import main

from e2e.images.catalog import ROOT
from tests.operator.api.documents import document, spec_file

TORCH = "plain torch computes attention, several times slower"
FLOAT16 = "has no fast bfloat16: set spec.engine.dtype to float16"


def service(product: str, **engine: Any) -> Any:
    model = {"uri": "hf://Qwen/Qwen3-0.6B"}
    return document({"model": model, "accelerator": {"product": product}, "engine": engine})


def asked(question: Question) -> Answer:
    return Answer(cost_source="", kv_pool_tokens=0, missing="not simulated here")


@pytest.mark.parametrize(
    ("product", "engine", "notes"),
    [
        ("Tesla-T4", {}, [f"capability 7.5 (Tesla-T4), only for 8.x, 9.0 and 10.0: {TORCH}",
                          f"Tesla-T4 {FLOAT16}"]),
        ("Tesla-T4", {"dtype": "float16"}, [TORCH]),
        ("NVIDIA-GeForce-RTX-5090", {}, [TORCH]),
        ("Tesla-T4", {"image": "registry.example.com/engine:1"}, []),
        ("NVIDIA-L4", {}, []),
        ("AMD_Instinct_MI300X_OAM", {}, []),
    ],
)  # fmt: skip
def test_a_slow_gpu_is_advice(
    product: str,
    engine: dict[str, Any],
    notes: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = spec_file(tmp_path, service(product, **engine))
    for command in (lambda: main(["plan", "-f", file]), lambda: explain(["-f", file], asked)):
        assert command() == 0
        text = " ".join(capsys.readouterr().out.split())
        assert [note for note in (TORCH, FLOAT16) if note in text] == [
            note for note in (TORCH, FLOAT16) if any(note in expected for expected in notes)
        ]
        assert all(note in text for note in notes)


def test_a_gpu_without_code_is_an_error_unless_the_image_is_the_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spec_file(tmp_path, service("Tesla-V100-SXM2-16GB"))
    for command in (lambda: main(["plan", "-f", file]), lambda: explain(["-f", file], asked)):
        assert command() == 1
        assert (
            "engines would not start\n  spec.accelerator.product: Tesla-V100-SXM2-16GB has compute "
            "capability 7.0, for which CUDA 13 has no code; allowed: 7.5 and later\n"
        ) in capsys.readouterr().err
    own = service("Tesla-V100-SXM2-16GB", image="registry.example.com/engine:1")
    assert main(["plan", "-f", spec_file(tmp_path, own)]) == 0


def test_the_table_agrees_with_the_image() -> None:
    dockerfile = (ROOT / "images/engine.Dockerfile").read_text()
    (built,) = set(re.findall(r'ARG ARCHITECTURES="(.*)"', dockerfile))
    architectures = [int(number) for number in built.split()]
    for row in PRODUCTS:
        if row.architecture is not None:
            has = built_for(row.architecture, architectures) is not None
            assert has_kernels(row.architecture) is has, row.name
