"""How many tokens one engine's KV cache has room for, for a resolved model.

Pure. The arithmetic is the engine's, with two omissions. On GPUs, engines also measure memory after
loading the weights; on CPUs, they leave a part of a container's memory free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sluice_contract.config.accelerators import Accelerator, memory_mib_of, requests_in_pool
from sluice_contract.config.model_shape import kv_values
from sluice_contract.config.sizing import Value

from sluice_operator.api.status import ModelStatus

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by the dtype's name in config.json and in `engine.dtype`."""
FP8_BYTES: Final = 1
"""Bytes of a number in the KV cache, where `engine.kvCacheDtype` is not `auto`."""
UNSAID_DTYPE: Final = "float32"
MIB: Final = 1 << 20


@dataclass(frozen=True)
class KvCapacity:
    """KV capacity of one engine, over all of its GPUs. Unknown values are None."""

    tokens: int | None = None
    how: Literal["exactly", "about", "at most"] = "about"
    """Precision of `tokens`."""
    token_bytes: int | None = None
    """Bytes of one token's keys and values, over all layers and GPUs."""
    missing: str | None = None
    """Why `tokens` is not known, for a person."""


def kv_capacity_of(
    model: ModelStatus | None,
    accelerator: Accelerator,
    settings: Mapping[str, Value],
    memory_limit_bytes: int | None = None,
) -> KvCapacity:
    """The capacity under resolved `settings`, by field name; at most the tokens that running
    requests can use. `model`: None if it is not resolved; `memory_limit_bytes`: limit of an
    engine's container."""
    capacity = KvCapacity(missing="the model is not resolved yet")
    if model is not None:
        capacity = _computed(model, accelerator, settings, memory_limit_bytes)
    configured = settings.get("kv_pool_tokens")
    if configured is None:
        return capacity
    return KvCapacity(int(configured), "exactly", capacity.token_bytes)


def _computed(
    model: ModelStatus,
    accelerator: Accelerator,
    settings: Mapping[str, Value],
    memory_limit_bytes: int | None,
) -> KvCapacity:
    stored = model.dtype or UNSAID_DTYPE
    dtype = stored if settings["dtype"] == "auto" else str(settings["dtype"])
    if model.layers is None or model.kv_heads is None or model.head_dim is None:
        return KvCapacity(missing="config.json does not say layers, heads of keys and their size")
    if stored not in BYTES or dtype not in BYTES:
        return KvCapacity(missing=f"the size of {stored} and {dtype} is not known")
    ranks = max(1, accelerator.count)
    number = BYTES[dtype] if settings.get("kv_cache_dtype", "auto") == "auto" else FP8_BYTES
    token_bytes = kv_values(model.layers, model.kv_heads, model.head_dim) * number
    if accelerator.is_cpu:
        memory_bytes, place = memory_limit_bytes, "the memory limit"
        unknown = "an engine on CPUs without a memory limit tells it at its start"
    else:
        memory_mib, place = memory_mib_of(accelerator), str(accelerator)
        memory_bytes = None if memory_mib is None else memory_mib * MIB * ranks
        unknown = f"the memory of {accelerator} is not known"
    if memory_bytes is None:
        return KvCapacity(token_bytes=token_bytes, missing=unknown)
    share = memory_bytes * int(settings["memory_percent"]) / 100
    weights = model.bytes * BYTES[dtype] / BYTES[stored]
    if model.quantization is not None:  # an engine holds them dequantised
        if model.parameters is None:
            text = f"how many weights the {model.quantization} files mean is not known"
            return KvCapacity(token_bytes=token_bytes, missing=text)
        weights = model.parameters * BYTES[dtype]
    if weights >= share:
        short = f"weights of {weights / 1e9:.1f} GB do not fit: {place} leaves"
        text = f"{short} {share / 1e9:.1f} GB to weights and KV cache"
        return KvCapacity(token_bytes=token_bytes, missing=text)
    tokens = int((share - weights) // token_bytes)
    how: Literal["about", "at most"] = "at most" if accelerator.is_cpu else "about"
    return KvCapacity(min(tokens, _useful(model, settings, tokens) or tokens), how, token_bytes)


def _useful(model: ModelStatus, settings: Mapping[str, Value], tokens: int) -> int | None:
    """Most tokens that running requests can use: full contexts of as many requests as run at once
    in a pool of `tokens`. None: the context length is unknown."""
    context = settings.get("context_length") or model.context_tokens
    requests = settings.get("max_running_requests")
    if requests is None:
        requests = requests_in_pool(tokens, int(settings["cuda_graph_max_batch"]))
    return int(requests) * int(context) if context else None
