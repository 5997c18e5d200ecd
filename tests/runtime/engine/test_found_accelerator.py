"""An engine that is asked for any GPU is sized for the one that was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.config.accelerators import Accelerator
from sluice_runtime.engine.__main__ import read_config
from sluice_runtime.engine.sizing.plan import resolved

H100 = Accelerator(product="NVIDIA H100 80GB HBM3", memory_mib=81_559, count=1)


@pytest.mark.parametrize(
    ("wanted", "found", "chunk"),
    [
        ({"count": 1}, H100, 8192),
        ({"count": 1, "product": "T4"}, H100, 2048),
        ({"count": 1}, None, 4096),
        (None, Accelerator(), 512),
    ],
)
def test_a_gpu_without_a_name_takes_that_of_the_one_found(
    wanted: dict[str, Any] | None, found: Accelerator | None, chunk: int, tmp_path: Path
) -> None:
    path = tmp_path / "engine.json"
    config = {"model": {"uri": "dummy://qwen3-tiny"}, "accelerator": wanted}
    path.write_text(json.dumps(config))
    told = found.model_dump_json(by_alias=True) if found else None
    assert resolved(read_config(path, told)).chunk_size == chunk
