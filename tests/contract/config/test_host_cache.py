"""Sizes of a host cache, as Kubernetes writes them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from sluice_contract.base import ConfigError
from sluice_contract.config.engine import parse_engine_config
from sluice_contract.config.host_cache import HostCacheSettings, bytes_of


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (123, 123),
        ("123", 123),
        ("64Gi", 64 << 30),
        ("5k", 5000),
        ("2T", 2 * 10**12),
        ("1.5Gi", 3 << 29),
        ("1500m", 2),
    ],
)
def test_sizes_are_bytes(written: int | str, size: int) -> None:
    assert bytes_of(written) == size


@pytest.mark.parametrize("size", [0, -1, True, "0Gi", "64GB", "1.5Gi", "", "9" * 17, "64 Gi"])
def test_other_sizes_are_refused(size: object) -> None:
    with pytest.raises(ValidationError, match="bytes such as 64Gi"):
        HostCacheSettings.model_validate({"memory": size})


def test_a_host_cache_of_a_decode_engine_is_refused_by_its_key() -> None:
    text = '{"model":{"uri":"dummy://x"},"role":"decode","hostCache":{"memory":"1Gi"}}'
    with pytest.raises(
        ConfigError, match=r'^hostCache: \{"memory": ?"1Gi"\} is not allowed; '
    ) as it:
        parse_engine_config(text)
    assert it.value.allowed == "none in role decode, which has no prompts to keep"
