"""How many tokens fit, of a model that is resolved; on GPUs, beside the engine's own arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineSettings
from sluice_contract.config.sizing import resolve_settings, resolved_values
from sluice_operator.api.status import ModelStatus
from sluice_operator.cli.kv_capacity import KvCapacity, kv_capacity_of

from tests.operator.model_pods import RESOLVED

H100 = "NVIDIA-H100-80GB-HBM3"
TOKEN_BYTES = 2 * 36 * 8 * 128 * 2


def kv_capacity(
    accelerator: Accelerator,
    engine: dict[str, Any] | None = None,
    limit: int | None = None,
    **facts: Any,
) -> KvCapacity:
    known = {"uri": "hf://org/name", "revision": "main", **RESOLVED, **facts}
    settings = resolve_settings(EngineSettings.model_validate(engine or {}), accelerator)
    status = ModelStatus.model_validate(known)
    return kv_capacity_of(status, accelerator, resolved_values(settings), limit)


def test_what_weights_leave_of_each_gpu_is_room() -> None:
    one, two = (kv_capacity(Accelerator(product=H100, count=count)) for count in (1, 2))
    assert one.token_bytes == two.token_bytes == TOKEN_BYTES
    assert one.tokens is not None
    assert two.tokens is not None
    assert 330_000 < one.tokens < 400_000
    assert two.tokens > 2 * one.tokens, "the weights are there once"
    told = kv_capacity(Accelerator(product=H100, memory_mib=40_960, count=1))
    assert told.tokens is not None
    assert told.tokens < one.tokens / 2, "what the node tells is believed"


def test_gpus_with_copies_of_key_heads_hold_copies_of_their_weights() -> None:
    sixteen = Accelerator(product=H100, count=16)
    copied = kv_capacity(sixteen)
    weights = 2 * 36 * 8 * 128 * 4096 * 2
    as_own = kv_capacity(sixteen, kvHeads=16, bytes=RESOLVED["bytes"] + weights)
    assert copied.token_bytes == 2 * TOKEN_BYTES
    assert copied == as_own


def test_no_more_than_the_settings_can_use_and_twice_the_bytes_in_float32() -> None:
    used = {"maxRunningRequests": 4, "contextLength": 1024}
    assert kv_capacity(Accelerator(product=H100, count=1), used).tokens == 4 * 1024
    # Of contexts of 1,024 tokens an engine runs one for each 1,024 tokens, in multiples of 16.
    short = kv_capacity(Accelerator(product=H100, count=1), {"contextLength": 1024}).tokens or 0
    assert short == 352 * 1024
    wide = kv_capacity(Accelerator(product=H100, count=1), {"dtype": "float32"})
    assert wide.token_bytes == 2 * TOKEN_BYTES


def test_pages_of_8_bits_hold_twice_the_tokens() -> None:
    plain = kv_capacity(Accelerator(product=H100, count=1))
    half = kv_capacity(Accelerator(product=H100, count=1), {"kvCacheDtype": "fp8_e4m3"})
    assert half.token_bytes == TOKEN_BYTES // 2
    assert plain.tokens is not None
    assert half.tokens in (2 * plain.tokens, 2 * plain.tokens + 1)
    wide = {"kvCacheDtype": "fp8_e4m3", "dtype": "float32"}
    assert kv_capacity(Accelerator(product=H100, count=1), wide).token_bytes == TOKEN_BYTES // 2


def test_quantised_weights_take_what_the_engine_holds_of_them() -> None:
    plain = kv_capacity(Accelerator(product=H100, count=1)).tokens or 0
    files: dict[str, Any] = {"quantization": "awq", "bytes": 6_000_000_000}
    told = kv_capacity(Accelerator(product=H100, count=1), **files, parameters=8_200_000_000)
    assert told.tokens == plain, "8.2 billion numbers of 2 bytes are 16.4 GB"
    unknown = kv_capacity(Accelerator(product=H100, count=1), **files)
    assert unknown.tokens is None
    assert unknown.missing == "how many weights the awq files mean is not known"


def test_on_cpus_the_memory_limit_is_an_upper_bound() -> None:
    found = kv_capacity(Accelerator(), limit=40 << 30)
    assert found.how == "at most"
    assert found.tokens == (0.85 * (40 << 30) - 16_400_000_000) // TOKEN_BYTES
    assert kv_capacity(Accelerator(product=H100, count=1), limit=40 << 30) == kv_capacity(
        Accelerator(product=H100, count=1)
    )


@pytest.mark.parametrize("accelerator", [Accelerator(), Accelerator(product=H100, count=1)])
def test_what_is_configured_is_known_of_every_model(accelerator: Accelerator) -> None:
    found = kv_capacity(accelerator, {"kvPoolTokens": 4096}, limit=1 << 30)
    assert found == KvCapacity(4096, "exactly", TOKEN_BYTES)
    settings = resolve_settings(EngineSettings.model_validate({"kvPoolTokens": 4096}), accelerator)
    unresolved = kv_capacity_of(None, accelerator, resolved_values(settings))
    assert unresolved == KvCapacity(4096, "exactly")


@pytest.mark.parametrize(
    ("accelerator", "facts", "says"),
    [
        (Accelerator(product=H100, count=1), {"layers": None}, "config.json does not say"),
        (Accelerator(product=H100, count=1), {"dtype": "float8"}, "float8"),
        (Accelerator(product="X-1", count=1), {}, "the memory of 1 x X-1 is not known"),
        (Accelerator(), {}, "at its start"),
        (Accelerator(), {"limit": 10 << 30}, "the memory limit leaves 9.1 GB"),
        (Accelerator(product="NVIDIA-L4", count=1), {"bytes": 30_000_000_000}, "do not fit"),
    ],
)
def test_what_is_missing_is_said(accelerator: Accelerator, facts: Any, says: str) -> None:
    found = kv_capacity(accelerator, **facts)
    assert found.tokens is None
    assert says in (found.missing or "")
