"""Settings left out get their values; too little memory is an error that names the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.sizing import ResolvedConfig
from sluice_runtime.engine.sizing.plan import (
    HostBytes,
    ReservedMemory,
    context_length,
    grammar_bytes_beside_gpu,
    host_pages,
    live_matchers,
    pool_pages,
    resolved,
    scheduler_settings,
)
from sluice_runtime.errors import InvalidConfigError, OutOfMemoryError
from sluice_runtime.scheduler.settings import HostPages, StepTarget

MIB = 1 << 20
GIB = 1 << 30
HOST = HostBytes(total=1000 * MIB, available=900 * MIB)
RESERVED = ReservedMemory(grammars=60 * MIB, sampling=30 * MIB, api_process=10 * MIB)


def config(**settings: Any) -> ResolvedConfig:
    config = resolved(
        EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}, **settings})
    )
    assert isinstance(config, ResolvedConfig)
    return config


def test_the_context_is_the_models_unless_a_shorter_one_is_asked_for() -> None:
    assert context_length(config(), 4096) == 4096
    assert context_length(config(contextLength=100), 4096) == 100
    with pytest.raises(InvalidConfigError, match=r"contextLength: 5000 .* 4096"):
        context_length(config(contextLength=5000), 4096)


def test_the_pool_takes_what_the_memory_percent_leaves() -> None:
    # 1000 x 0.5 - 100 used = 400 MiB of 4 KiB tokens.
    assert pool_pages(config(memoryPercent=50), 4096, 4096, HOST, RESERVED) == 400 * 256 // 16


@pytest.mark.parametrize("part", ["grammars", "sampling", "api_process"])
def test_the_pool_leaves_the_reserved_memory_free(part: str) -> None:
    reserved = replace(RESERVED, **{part: 600 * MIB - (RESERVED.total - getattr(RESERVED, part))})
    assert pool_pages(config(memoryPercent=90), 4096, 4096, HOST, reserved) == 300 * 256 // 16


def test_a_configured_pool_must_leave_room_for_logits_penalties_and_the_api_process() -> None:
    reserved = replace(RESERVED, sampling=80 * MIB, api_process=20 * MIB)
    assert pool_pages(config(kvPoolTokens=800 * 1024), 4096, 1024, HOST, reserved) == 800 * 64
    wrong = r"at most 819200: .* penalties .* need 80 MiB and the API process 20 MiB$"
    with pytest.raises(OutOfMemoryError, match=wrong):
        pool_pages(config(kvPoolTokens=800 * 1024 + 16), 4096, 1024, HOST, reserved)


@pytest.mark.parametrize(
    ("available_mib", "live"), [(64 * 1024, 199), (4 * 1024, 91), (1024, 14), (300, 1), (0, 1)]
)
def test_grammars_beside_a_gpu_take_half_of_what_its_host_has_left(
    available_mib: int, live: int
) -> None:
    """Less 256 MiB for the API process and 100 MiB for the vocabulary; 20 MiB each."""
    assert live_matchers(grammar_bytes_beside_gpu(available_mib * MIB)) == live


def test_the_pool_is_no_larger_than_what_all_rows_can_use() -> None:
    assert pool_pages(config(maxRunningRequests=2), 1000, 1, HOST, RESERVED) == 125


def test_a_configured_pool_is_taken_as_it_is() -> None:
    assert pool_pages(config(kvPoolTokens=992), 4096, 1024, HOST, RESERVED) == 62


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"kvPoolTokens": 10_000_000}, ["kvPoolTokens: 10000000", "900 MiB", "880640"]),
        (
            {"contextLength": 400_000},
            ["contextLength", "KV pool", "400000", "memoryPercent 85, 60 MiB for"],
        ),
    ],
)
def test_errors_about_memory_name_phase_numbers_and_setting(
    settings: dict[str, Any], parts: list[str]
) -> None:
    chosen = config(**settings)
    bytes_each = 4096 if "contextLength" in settings else 1024
    with pytest.raises(OutOfMemoryError) as caught:
        pool_pages(chosen, chosen.context_length or 1, bytes_each, HOST, RESERVED)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_chunking_off_is_none_in_the_schedulers_settings() -> None:
    assert scheduler_settings(config(chunkSize=-1), 4096, 10).chunk_size is None
    assert scheduler_settings(config(), 4096, 10).chunk_size == 512
    assert scheduler_settings(config(), 4096, 10).limits.kv_pool_tokens == 160


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tensorParallelSize": 2}, "tensorParallelSize"),
        ({"schedulingPolicy": "lpm", "prefixCache": False}, "schedulingPolicy"),
        ({"chunkSize": 8, "pageSize": 16}, "chunkSize"),
        (
            {
                "speculation": {"method": "Eagle", "draft": {"uri": "/head"}},
                "host_cache": {"memory": 1},
            },
            'speculation.method: "Eagle"',
        ),
        ({"hostCache": {"memory": 1}, "prefixCache": False}, "hostCache: .* beside prefixCache"),
    ],
)
def test_settings_that_this_version_lacks_are_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidConfigError, match=key):
        config(**settings)


def test_drafts_are_off_unless_they_are_asked_for() -> None:
    assert scheduler_settings(config(), 4096, 10).draft_tokens == 0
    drafting = config(speculation={"method": "NGram"})
    assert scheduler_settings(drafting, 4096, 10).draft_tokens == 4


def test_a_host_cache_has_whole_pages_of_its_memory_and_its_disk() -> None:
    cached = config(host_cache={"memory": "2Gi", "disk": {"size": "1G"}})
    assert host_pages(cached, 1_000_000, HostBytes(8 * GIB, 8 * GIB)) == HostPages(
        2147, 1000, 1_000_000
    )
    assert host_pages(config(), 1_000_000, HostBytes(8 * GIB, 8 * GIB)) is None


def test_a_host_cache_needs_memory_that_is_there() -> None:
    cached = config(host_cache={"memory": "2Gi"})
    with pytest.raises(OutOfMemoryError, match=r"hostCache.memory: 2048 MiB are not allowed"):
        host_pages(cached, 1_000_000, HostBytes(8 * GIB, 2 * GIB))
    with pytest.raises(InvalidConfigError, match=r"hostCache.memory: .* at least a page"):
        host_pages(cached, 3 * GIB, HostBytes(8 * GIB, 8 * GIB))


def test_an_slo_becomes_the_target_of_steps() -> None:
    promised = config(slo={"itlMilliseconds": 50, "percentile": 95})
    made = scheduler_settings(promised, 4096, 10)
    assert made.target == StepTarget(0.05, 0.95, 128)
    assert made.chunk_size == 512
    strict = scheduler_settings(config(slo={"itlMilliseconds": 50, "percentile": 99.9}), 4096, 10)
    assert strict.target
    assert strict.target.share == pytest.approx(0.999)
    assert scheduler_settings(config(), 4096, 10).target is None
    first = scheduler_settings(config(slo={"ttftMilliseconds": 500}), 4096, 10)
    assert (first.target, first.ttft_seconds, first.policy) == (None, 0.5, "slack")
    assert scheduler_settings(config(slo={"itlMilliseconds": 50}), 4096, 10).target == StepTarget(
        0.05, 0.99, 128
    )


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"chunkSize": -1}, "chunkSize: -1 .* slo.itlMilliseconds"),
        ({"mixedChunk": False}, "mixedChunk: false .* true, as slo.itlMilliseconds"),
    ],
)
def test_an_slo_needs_chunks_and_mixed_batches(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidConfigError, match=line):
        config(slo={"itlMilliseconds": 50}, **settings)
