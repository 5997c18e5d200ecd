"""Descriptions of the defaults of `engine.json`'s keys, for the CRDs and the reference; `sizing`
has the values.

The CRDs and the reference show them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from sluice_contract.config.accelerators import CPU, GENERAL_MEMORY_PERCENT, MIN_RUNNING_REQUESTS
from sluice_contract.config.adapters import DEFAULT_MAX_LORAS_PER_BATCH, LEAST_MAX_LORA_RANK
from sluice_contract.config.sizing import GENERAL

BY_ACCELERATOR: Final[Mapping[str, str]] = {
    "chunk_size": f"by accelerator; {CPU.chunk_size} on CPUs",
    "cuda_graph_max_batch": f"by accelerator; {CPU.cuda_graph_max_batch} on CPUs",
    "tensor_parallel_size": "accelerator.count; 1 on CPUs",
    "max_running_requests": f"by KV pool; {MIN_RUNNING_REQUESTS} on CPUs",
    "overlap": "true; false on CPUs",
    "memory_percent": f"by accelerator; {GENERAL_MEMORY_PERCENT} on CPUs",
}
FOUND_BY_ENGINE: Final[Mapping[str, str]] = {
    "context_length": "the model's",
    "kv_pool_tokens": "by memoryPercent",
    "min_prefill_tokens": "pageSize",
    "max_loras_per_batch": str(DEFAULT_MAX_LORAS_PER_BATCH),
    "max_lora_rank": f"the largest at the start, {LEAST_MAX_LORA_RANK} at least",
    "strict_requests": "false",
    "threads": "the container's processors",
    "tool_call_format": "by the chat template",
    "weight_dtype": "auto",
    "reasoning_format": "by the chat template",
}


def words_when_left_out() -> dict[str, str]:
    """Defaults in words by field name of `EngineSettings`; a field without an entry has no effect
    when left out."""
    general = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in GENERAL.items()
    }
    return {**general, **BY_ACCELERATOR, **FOUND_BY_ENGINE}
