"""The ready-made configurations: what they set, and that they serve the load they are made for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_contract.config.engine import EngineConfig, parse_engine_config
from sluice_contract.config.sizing import ResolvedConfig
from sluice_operator.cli.main import main
from sluice_runtime.engine.sizing.plan import resolved, scheduler_settings
from sluice_runtime.wire.messages import Generate, Sampling

from tests.runtime.scheduler.building import Bench

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
CONTEXT_TOKENS = 4096

READY_MADE: dict[str, dict[str, Any]] = {
    "chatbot": {"chunkSize": 4096, "maxRunningRequests": 128, "schedulingPolicy": "fcfs"},
    "rag": {"chunkSize": 16384, "prefixCache": True, "schedulingPolicy": "priority"},
    "batch": {
        "chunkSize": 32768,
        "maxPrefillTokens": 32768,
        "maxRunningRequests": 512,
        "schedulingPolicy": "sjf",
    },
    "low-latency": {"chunkSize": 4096, "maxRunningRequests": 64},
    "high-throughput": {"chunkSize": 16384, "maxRunningRequests": 512, "schedulingPolicy": "lpm"},
    "mixed": {"chunkSize": 8192, "mixedChunk": True, "schedulingPolicy": "priority"},
    "tenants": {"schedulingPolicy": "priority"},
}
LOADS = {
    "chatbot": (80, 50, 20),
    "rag": (20, 2000, 10),
    "batch": (300, 20, 10),
    "low-latency": (80, 50, 20),
    "high-throughput": (300, 20, 10),
    "mixed": (80, 50, 20),
    "tenants": (50, 50, 20),
}
"""Requests, tokens of each prompt, tokens of each answer."""


def engine_config(name: str, capsys: pytest.CaptureFixture[str]) -> EngineConfig:
    """As the engine reads it."""
    assert main(["render", "-f", str(SAMPLES / f"{name}.yaml")]) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    files = [m["data"] for m in manifests if m["kind"] == "ConfigMap"]
    return parse_engine_config(next(f["engine.json"] for f in files if "engine.json" in f))


@pytest.mark.parametrize("name", READY_MADE)
def test_it_sets_what_it_is_made_of(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(SAMPLES / f"{name}.yaml"), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["refusal"] is None
    settings = found["pools"]["mixed"]["settings"]
    values = {key: settings[key]["value"] for key in READY_MADE[name]}
    assert values == READY_MADE[name]


def test_low_latency_promises_a_time_between_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    slo = engine_config("low-latency", capsys).slo
    assert slo
    assert (slo.itl_milliseconds, slo.percentile) == (50, 99)


@pytest.mark.parametrize("name", READY_MADE)
def test_it_serves_the_load_it_is_made_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = resolved(engine_config(name, capsys))
    assert isinstance(config, ResolvedConfig)
    settings = scheduler_settings(config, CONTEXT_TOKENS, pages=4096)
    bench = Bench(settings)
    requests, prompt, answer = LOADS[name]
    for index in range(requests):
        tokens = [(index + i) % 50 for i in range(prompt)]
        sampling = Sampling(temperature=0.0)
        bench.add(Generate(f"r{index}", tokens, answer, sampling, priority=index % 3))
    batches = bench.run()
    assert all(len(bench.answers[f"r{index}"]) == answer for index in range(requests))
    assert (
        max(len(b.decode_rows) for b in batches) > min(requests, settings.max_running_requests) / 2
    )
    assert max(b.extend_tokens for b in batches) <= (settings.chunk_size or 0)
