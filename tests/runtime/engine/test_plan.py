"""Open settings become numbers; what does not fit ends in one line that names the setting."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.config import EngineConfig
from sluice_runtime.engine.plan import (
    GrammarRoom,
    HostBytes,
    context_length,
    grammar_room,
    pool_pages,
    resolved,
    scheduler_settings,
)
from sluice_runtime.errors import InvalidConfigError, OutOfMemoryError
from sluice_runtime.scheduler.settings import StepTarget

MIB = 1 << 20
GIB = 1 << 30
HOST = HostBytes(total=1000 * MIB, available=900 * MIB)
ROOM = GrammarRoom(compilers=1, bytes_each=50 * MIB)


def config(**settings: Any) -> EngineConfig:
    return resolved(
        EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}, **settings})
    )


def test_the_context_is_the_models_unless_a_shorter_one_is_asked_for() -> None:
    assert context_length(config(), 4096) == 4096
    assert context_length(config(contextLength=100), 4096) == 100
    with pytest.raises(InvalidConfigError, match=r"contextLength: 5000 .* 4096"):
        context_length(config(contextLength=5000), 4096)


def test_the_pool_takes_what_the_memory_fraction_leaves() -> None:
    # 1000 x 0.5 - 100 used = 400 MiB of 4 KiB tokens.
    assert pool_pages(config(memoryFraction=0.5), 4096, 4096, HOST, ROOM) == 400 * 256 // 16


def test_the_pool_leaves_room_for_compiling_grammars() -> None:
    room = GrammarRoom(compilers=2, bytes_each=200 * MIB)
    assert pool_pages(config(memoryFraction=0.9), 4096, 4096, HOST, room) == 300 * 256 // 16


@pytest.mark.parametrize(
    ("settings", "host_bytes", "room"),
    [
        ({}, 2 * GIB, GrammarRoom(1, 512 * MIB)),
        ({"memoryFraction": 0.75}, 5 * GIB, GrammarRoom(1, 640 * MIB)),
        ({"memoryFraction": 0.75}, 6 * GIB, GrammarRoom(2, 512 * MIB)),
        ({"memoryFraction": 0.75}, 12 * GIB, GrammarRoom(2, GIB)),
        ({"memoryFraction": 0.75}, 64 * GIB, GrammarRoom(2, 2 * GIB)),
        ({"memoryFraction": 0.99}, 32 * GIB, GrammarRoom(1, 512 * MIB)),
        ({"grammarCompileBytes": 3 * GIB}, 2 * GIB, GrammarRoom(2, 3 * GIB)),
    ],
)
def test_grammars_are_compiled_in_what_the_memory_fraction_leaves(
    settings: dict[str, Any], host_bytes: int, room: GrammarRoom
) -> None:
    assert grammar_room(config(**settings), host_bytes) == room


def test_the_pool_is_no_larger_than_what_all_rows_can_use() -> None:
    assert pool_pages(config(maxRunningRequests=2), 1000, 1, HOST, ROOM) == 125


def test_a_configured_pool_is_taken_as_it_is() -> None:
    assert pool_pages(config(kvPoolTokens=992), 4096, 1024, HOST, ROOM) == 62


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"kvPoolTokens": 10_000_000}, ["kvPoolTokens: 10000000", "900 MiB", "921600"]),
        (
            {"contextLength": 400_000},
            ["contextLength", "KV pool", "400000", "memoryFraction 0.85, 100 MiB for"],
        ),
    ],
)
def test_what_does_not_fit_names_phase_numbers_and_setting(
    settings: dict[str, Any], parts: list[str]
) -> None:
    chosen = config(**settings)
    bytes_each = 4096 if "contextLength" in settings else 1024
    with pytest.raises(OutOfMemoryError) as caught:
        pool_pages(chosen, chosen.context_length or 1, bytes_each, HOST, ROOM)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_chunking_off_is_none_to_the_scheduler() -> None:
    assert scheduler_settings(config(chunkSize=-1), 4096, 10).chunk_size is None
    assert scheduler_settings(config(), 4096, 10).chunk_size == 512
    assert scheduler_settings(config(), 4096, 10).limits.kv_pool_tokens == 160


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tensorParallelSize": 2}, "tensorParallelSize"),
        ({"schedulingPolicy": "lpm", "prefixCache": False}, "schedulingPolicy"),
        ({"chunkSize": 8, "pageSize": 16}, "chunkSize"),
    ],
)
def test_what_this_version_lacks_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidConfigError, match=key):
        config(**settings)


def test_a_promise_is_the_target_of_steps() -> None:
    promised = config(slo={"itlMilliseconds": 50, "percentile": 95})
    made = scheduler_settings(promised, 4096, 10)
    assert made.target == StepTarget(0.05, 0.95, 128)
    assert made.chunk_size == 512
    assert scheduler_settings(config(), 4096, 10).target is None
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
def test_a_promise_needs_chunks_and_mixed_batches(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidConfigError, match=line):
        config(slo={"itlMilliseconds": 50}, **settings)
