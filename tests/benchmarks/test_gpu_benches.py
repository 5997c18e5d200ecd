"""The benchmarks that need a GPU, on this machine's CPU with tiny shapes: they run to their ends
and say what they promise. Their figures here mean nothing."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from benchmarks.gpu import engines, limits

TINY: dict[str, Any] = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "float32",
    "max_position_embeddings": 8192,
}  # fmt: skip
SMALL: dict[str, tuple[dict[str, Any], set[str]]] = {
    "serving": ({"AT_ONCE": 4, "WAVES": 1}, {"serving", "serving.itl_p50", "serving.ttft_p50"}),
    "overlap": ({"REQUESTS": 2}, {"overlap.on", "overlap.off", "overlap.ratio.off"}),
    "long_prompt": (
        {"DECODERS": 2, "CONTEXT": 20, "LONG": 600, "ANSWER": 8},
        {"long_prompt.itl_p99", "long_prompt.ttft", "long_prompt.fixed-2048.ttft"},
    ),
    "interference": (
        {"STREAMS": 2, "CONTEXT": 8, "ANSWER": 8, "LONG": 300, "FIXED_CHUNKS": (32,)},
        {"interference.chosen.itl_p99", "interference.chunk-32.ttft"},
    ),
    "steps": (
        {"ROWS": 3, "CONTEXT": 16, "STEPS": 3, "ACTIVITIES": (ProfilerActivity.CPU,)},
        {"steps.decode", "steps.idle"},
    ),
}

LONG = {"overlap", "steps", "interference"}
"""Of several engines, or with the profiler, which takes seconds to start."""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {name: {**shape, **TINY} for name, shape in engines.SHAPES.items()}
    monkeypatch.setattr(engines, "SHAPES", shapes)
    monkeypatch.setattr(engines, "accelerator", dict)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setitem(engines.DEFAULTS, "kv_pool_tokens", 16_384)
    monkeypatch.setitem(engines.DEFAULTS, "threads", 1)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.full] if n in LONG else []) for n in SMALL]
)
def test_a_benchmark_says_what_it_promises(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    constants, promised = SMALL[name]
    bench = importlib.import_module(f"benchmarks.gpu.{name}")
    for key, value in constants.items():
        monkeypatch.setattr(bench, key, value)
    bench.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert promised <= {line["figure"] for line in lines}
    assert all(line["unit"] for line in lines)


def test_the_offline_workload_is_the_published_one() -> None:
    offline = importlib.import_module("benchmarks.gpu.offline")
    prompts, answers = zip(*offline.lengths(), strict=True)
    assert (sum(prompts), sum(answers)) == (142_827, 133_966)


def test_limits_are_of_one_device_and_every_figure_with_a_limit_is_measured() -> None:
    assert limits.beside("offline", "NVIDIA H100 80GB HBM3") == {}
    assert limits.beside("offline", "NVIDIA H200")["target"] == 27_000
    promised = {"offline"}.union(*(figures for _, figures in SMALL.values()))
    assert limits.H200.keys() <= promised
