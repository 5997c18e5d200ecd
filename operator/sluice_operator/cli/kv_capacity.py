"""KV capacity in a preview, pool by pool: how many tokens one engine has room for.

Pure. The arithmetic is the engine's, with two omissions. On GPUs, engines also measure memory after
loading the weights; on CPUs, they leave a part of a container's memory free. The operator knows the
config.json only of models from a hub or bucket; of other models it has only the spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sluice_contract.config.accelerators import (
    MAX_RUNNING_REQUESTS,
    Accelerator,
    memory_mib_of,
    requests_in_pool,
)
from sluice_contract.config.model_shape import kv_values
from sluice_contract.config.sizing import Value, resolved_values

from sluice_operator.api.quantities import amount
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ModelStatus
from sluice_operator.delivery.resolved_model import is_fetched
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.rollout.planned_rollout import PlannedPool

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by the dtype's name in config.json and in `engine.dtype`."""
FP8_BYTES: Final = 1
"""Bytes of a number in the KV cache, where `engine.kvCacheDtype` is not `auto`."""
UNSAID_DTYPE: Final = "float32"
MIB: Final = 1 << 20
BY_ENGINE: Final = "which an engine chooses at its start from its KV pool"


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


def engine_kv_capacity(model: ModelStatus | None, pool: PlannedPool) -> KvCapacity:
    """The KV capacity of one engine of the pool. `model`: the resolved model; None: not
    resolved."""
    resources = pool.manifest["spec"].get("resources") or {}
    limit = amount((resources.get("limits") or {}).get("memory"))
    settings = resolved_values(pool.settings)
    bytes_ = None if limit is None else int(limit)
    return kv_capacity_of(model, pool.accelerator.accelerator, settings, bytes_)


def capacity_lines(
    spec: InferenceServiceSpec, model: ModelStatus | None, pool: PlannedPool
) -> Iterator[str]:
    """The pool's KV capacity as an indented line; none if it can never be known here."""
    capacity = engine_kv_capacity(model, pool)
    if capacity.tokens is None and not is_fetched(spec.model):
        return
    token_size = f", {capacity.token_bytes:,} bytes each" if capacity.token_bytes else ""
    if capacity.tokens is not None:
        how = "" if capacity.how == "exactly" else f"{capacity.how} "
        yield f"  KV pool: {how}{capacity.tokens:,} tokens an engine{token_size}"
    else:
        yield f"  KV pool: tokens that fit are not known{token_size}: {capacity.missing}"


def running_lines(model: ModelStatus | None, pool: PlannedPool) -> Iterator[str]:
    """How many requests run at once, where an engine of the pool chooses it: an indented line."""
    settings = resolved_values(pool.settings)
    if "max_running_requests" in settings:
        return
    tokens, graph_batch = (
        engine_kv_capacity(model, pool).tokens,
        int(settings["cuda_graph_max_batch"]),
    )
    if tokens is None:
        number = f"{requests_in_pool(0, graph_batch):,} to {MAX_RUNNING_REQUESTS:,}"
    else:
        number = f"about {requests_in_pool(tokens, graph_batch):,}"
    yield f"  maxRunningRequests: {number}, {BY_ENGINE}"


def capacity_json(
    spec: InferenceServiceSpec, model: ModelStatus | None, pool: PlannedPool
) -> Manifest | None:
    """The pool's KV capacity as JSON; None if it can never be known here."""
    capacity = engine_kv_capacity(model, pool)
    if capacity.tokens is None and not is_fetched(spec.model):
        return None
    return {
        "tokens": capacity.tokens,
        "how": None if capacity.tokens is None else capacity.how,
        "tokenBytes": capacity.token_bytes,
        "missing": capacity.missing,
    }
