"""The commands for GPUs run from start to end on a CPU that pretends to be a GPU: engines are
prepared as in production, steps go through captured graphs, every case passes. See `pretended`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from e2e.gpu_runs import __main__ as gpu_runs
from e2e.gpu_runs.cases import LISTS
from e2e.gpu_runs.device import CudaDevice
from e2e.gpu_runs.environment import ROOT, Environment

PRETENDED = Path(__file__).with_name("pretended")
DEVICE = CudaDevice("NVIDIA H100 80GB HBM3", 90)
FIGURES = {
    "overlap": {"overlap.on", "overlap.off", "overlap.ratio.off", "overlap.ratio.graphs-off"},
    "steps": {
        "steps.decode",
        "steps.bandwidth_limit",
        "steps.idle",
        "steps.attention_rate",
        "steps.replay",
        *(
            f"steps.qwen3-0.6b.{kernels}.{part}"
            for kernels in ("cuda_cores", "tensor_cores", "no_pdl")
            for part in (
                *("decode", "device", "attention", "attention_rate"),
                *("host", "replay", "wait"),
            )
        ),
    },
    "offline": {"offline"},
    "serving": {"serving", "serving.itl_p50", "serving.ttft_p50"},
    "long_prompt": {"long_prompt.itl_p99", "long_prompt.ttft", "long_prompt.fixed-2048.ttft"},
    "interference": {"interference.chosen.itl_p99", "interference.chunk-164.ttft"},
    "speculation": {"speculation.ratio.1", "speculation.ratio.64"},
    "http": {
        *("start.ready", "start.imports", "start.weights", "start.warm-up", "start.graphs"),
        *("http", "http.ttft_p50", "http.event_gap_p50"),
    },
    "windows": {
        f"windows.{kernels}.{part}"
        for kernels in ("flashinfer", "torch")
        for part in ("decode", "device", "host")
    },
    "copies": {"copies.plain.to_host", "copies.scattered.to_device"},
    "kernels": {
        "kernels.copy",
        "kernels.rotate_and_store.llama3-8b.1",
        "kernels.decode_inputs.64",
        "kernels.prompt.1+164",
    },
    "products": {
        "products.copy",
        *(f"products.fp8-{by}.llama3-70b.down.1" for by in ("blocks", "outputs")),
        *(f"products.experts.{name}.82" for name in ("gpt-oss-20b", "qwen3-30b-a3b-int4")),
        "products.error.fp8-outputs.qwen3-8b.gate_up.1",
        "products.error.experts.qwen3-30b-a3b-int4.82",
    },
    "weights": {"load_weights"},
}
"""What each benchmark says, among others."""
SOON = ("graphs", "steps")
"""One test and one benchmark; all others take more than a minute of CPU time together."""


def cases(*, soon: bool) -> list[tuple[str, str]]:
    listed = [(kind, case.name) for kind in ("test", "bench") for case in LISTS[kind]]
    return [(kind, name) for kind, name in listed if (name in SOON) == soon]


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *cases(soon=True),
        *(pytest.param(*case, marks=pytest.mark.full) for case in cases(soon=False)),
    ],
)
def test_a_case_runs_from_start_to_end(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_runs, "cuda_devices", lambda: [DEVICE])
    monkeypatch.setattr(gpu_runs, "missing_modules", lambda *_: [])
    pretended = Environment(Path(sys.executable), (PRETENDED,))
    monkeypatch.setattr(gpu_runs, "environment", lambda wheels: pretended)
    monkeypatch.setenv("SLUICE_BENCH_SCALE", "0.02")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(ROOT / ".cache" / "bytecode"))
    results = tmp_path / "results.jsonl"
    status = gpu_runs.main([kind, name, "--results", str(results)])
    assert status == 0, results.with_suffix(".log").read_text()[-4000:]
    *measured, last = map(json.loads, results.read_text().splitlines())
    assert (last["case"], last["state"]) == (name, "passed")
    figures = {figure["figure"]: figure for figure in last["figures"]}
    assert figures.keys() >= (FIGURES[name] if kind == "bench" else set())
    assert [line["figures"][0] for line in measured] == last["figures"], "each as it was measured"
    if name in ("overlap", "offline"):
        assert figures.get("overlap.on", figures.get("offline"))["graph_steps"] > 0  # type: ignore[index]
    if name == "steps":
        assert figures["steps.replay"]["value"] > 0
