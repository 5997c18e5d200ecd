"""Answers are the same with a host cache, however small the pool: what was evicted comes back as it
was computed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sluice_runtime.wire.messages import Generate

from tests.runtime.harness import Run, engine_config, generate, run_engine

MODEL = "dummy://qwen3-tiny"
SMALL_BYTES = 97 * 4096
"""Half of what the tier would hold: pages take the place of others, and still some come back."""
TIERS: dict[str, dict[str, Any]] = {
    "memory": {"memory": "64Mi"},
    "disk": {"memory": 500_000, "disk": {"size": "64Mi"}},
    "small": {"memory": SMALL_BYTES},
}


def turns(seed: int = 1) -> list[Generate]:
    """Six prompts of which a pool of 288 tokens holds two, three times over; each time longer."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(256) for _ in range(draw.randint(60, 110))] for _ in range(6)]
    requests = []
    for turn in range(3):
        for index, prompt in enumerate(prompts):
            prompt += [draw.randrange(256) for _ in range(turn * 8)]
            requests.append(generate(f"t{turn}r{index}", list(prompt), 6))
    return requests


def run(tier: dict[str, Any] | None, folder: Path, *, overlap: bool = False, **more: Any) -> Run:
    settings: dict[str, Any] = {
        "dtype": "float32",
        "page_size": 4,
        "chunk_size": 64,
        "kv_pool_tokens": 288,
        "prefix_cache": True,
    }
    settings |= {"host_cache": tier, "host_cache_folder": str(folder)} if tier else {}
    return run_engine(engine_config(MODEL, **(settings | more)), turns(), overlap=overlap)


def assert_alike(tiered: Run, other: Run) -> None:
    """Tokens, and the logits that they were drawn from: a tiny model's tokens hardly depend on what
    is in the pages, its logits do."""
    assert tiered.tokens == other.tokens
    for name, logits in other.logits.items():
        torch.testing.assert_close(tiered.logits[name], logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tier", TIERS)
def test_answers_are_those_of_a_pool_in_which_all_has_room(tier: str, tmp_path: Path) -> None:
    whole = run(None, tmp_path, kv_pool_tokens=8192)
    small = run(TIERS[tier], tmp_path)
    assert_alike(small, whole)
    assert small.evictions > 100
    assert small.host is not None
    assert sum(small.host.hit_tokens.values()) > 300
    assert bool(small.host.hit_tokens.get("disk")) == (tier == "disk")
    if tier == "small":
        assert small.host.used_bytes["memory"] == SMALL_BYTES
        assert small.host.copied_bytes["saved"] > 2 * SMALL_BYTES


def test_a_model_drafts_for_rows_whose_prefix_came_back(tmp_path: Path) -> None:
    """It keeps no pages in the tier: it computes again what came back, and then its drafts for
    itself are right, but for those behind the ends of answers."""
    draft = {"method": "Draft", "tokens": 4, "draft": {"uri": MODEL}}
    drafting = run(TIERS["memory"], tmp_path, speculation=draft)
    assert drafting.tokens == run(None, tmp_path).tokens
    assert drafting.host is not None
    assert drafting.host.hit_tokens["memory"] > 300
    assert drafting.accepted_tokens > 20
    assert drafting.drafted_tokens - drafting.accepted_tokens <= 4 * len(turns())


@pytest.mark.process
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"attention_backend": "torch"},
        {"page_size": 16, "reserve_percent": 10},
        {"speculation": {"method": "NGram"}, "mixed_chunk": False},
        {"speculation": {"method": "Draft", "draft": {"uri": "dummy://llama-tiny"}}},
        {"scheduling_policy": "lpm", "prefix_eviction_policy": "slru"},
    ],
    ids=str,
)
def test_answers_are_those_without_it(more: dict[str, Any], overlap: bool, tmp_path: Path) -> None:
    without = run(None, tmp_path, **more)
    tiered = run(TIERS["disk"], tmp_path, overlap=overlap, **more)
    assert_alike(tiered, without)
    assert tiered.host is not None
    assert tiered.host.hit_tokens
