"""KV capacity in a preview, pool by pool: how many tokens one engine has room for.

Pure. The arithmetic is the engine's, with two omissions. On GPUs, engines also measure memory after
loading the weights; on CPUs, they leave a part of a container's memory free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from sluice_contract.config.accelerators import (
    MAX_RUNNING_REQUESTS,
    Accelerator,
    memory_mib_of,
    packs_weights,
    requests_in_pool,
)
from sluice_contract.config.model_facts import ModelFacts
from sluice_contract.config.model_shape import copied_weights, key_copies, kv_values
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
UNKNOWN_MODEL: Final = (
    "the model is not among the published models that this command knows; whether it exists is not "
    "checked here"
)
BY_ENGINE: Final = "which an engine chooses at its start from its KV pool"


@dataclass(frozen=True)
class KvCapacity:
    """KV capacity of one engine, over all of its GPUs. Unknown values are None."""

    tokens: int | None = None
    how: Literal["exactly", "about", "at most"] = "about"
    """Precision of `tokens`."""
    token_bytes: int | None = None
    """Bytes of one token's keys and values, over all layers and GPUs. More GPUs than key heads hold
    copies."""
    missing: str | None = None
    """Why `tokens` is not known, for a person."""


@dataclass(frozen=True)
class MemoryShare:
    """Memory of one engine for weights and KV pool, over all of its GPUs, in bytes."""

    bytes: float
    weights: float
    token_bytes: int
    place: str
    """What leaves that memory, for a person."""

    @property
    def tokens(self) -> int:
        """Tokens that fit beside the weights; negative where these alone do not fit."""
        return int((self.bytes - self.weights) // self.token_bytes)


def kv_capacity_of(
    model: ModelFacts | None,
    accelerator: Accelerator,
    settings: Mapping[str, Value],
    memory_limit_bytes: int | None = None,
) -> KvCapacity:
    """The capacity under resolved `settings`, by field name; at most the tokens that running
    requests can use. `model`: None if its sizes are unknown; `memory_limit_bytes`: limit of an
    engine's container."""
    capacity = KvCapacity(missing=UNKNOWN_MODEL)
    if model is not None:
        share = memory_share(model, accelerator, settings, memory_limit_bytes)
        capacity = share if isinstance(share, KvCapacity) else _capacity(model, share, settings)
        if accelerator.is_cpu and capacity.tokens is not None:
            capacity = replace(capacity, how="at most")
    configured = settings.get("kv_pool_tokens")
    if configured is None:
        return capacity
    return KvCapacity(int(configured), "exactly", capacity.token_bytes)


def memory_share(
    model: ModelFacts,
    accelerator: Accelerator,
    settings: Mapping[str, Value],
    memory_limit_bytes: int | None = None,
) -> MemoryShare | KvCapacity:
    """What an engine has for weights and KV pool; a capacity that says what is missing to know
    it."""
    stored = model.dtype or UNSAID_DTYPE
    dtype = stored if settings["dtype"] == "auto" else str(settings["dtype"])
    layers, heads, head_dim = model.layers, model.kv_heads, model.head_dim
    if layers is None or heads is None or head_dim is None or model.hidden_size is None:
        what = "layers, heads of keys, their size and the hidden size"
        return KvCapacity(missing=f"config.json does not say {what}")
    if stored not in BYTES or dtype not in BYTES:
        return KvCapacity(missing=f"the size of {stored} and {dtype} is not known")
    number = BYTES[dtype] if settings.get("kv_cache_dtype", "auto") == "auto" else FP8_BYTES
    ranks = max(1, accelerator.count)
    values, copies = kv_values(layers, heads, head_dim), key_copies(heads, ranks)
    token_bytes = copies * values * number
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
    if model.packed_parts and packs_weights(accelerator):
        if (part := model.packed_part(ranks)) is None:
            text = f"{ranks} GPUs cannot share the packed weights"
            return KvCapacity(token_bytes=token_bytes, missing=text)
        return MemoryShare(share, ranks * part.memory_bytes(BYTES[dtype]), token_bytes, place)
    weights = _weight_bytes(model, BYTES[stored], BYTES[dtype])
    if weights is None:
        text = f"how many weights the {model.quantization} files mean is not known"
        return KvCapacity(token_bytes=token_bytes, missing=text)
    weights += copied_weights(values, model.hidden_size, copies) * BYTES[dtype]
    return MemoryShare(share, weights, token_bytes, place)


def _weight_bytes(model: ModelFacts, stored_bytes: int, held_bytes: int) -> float | None:
    """Bytes of weights that do not stay packed in an engine's memory; copies are not counted."""
    if isinstance(model, ModelStatus) and model.quantization is None:
        return model.bytes * held_bytes / stored_bytes
    return None if model.parameters is None else float(model.parameters * held_bytes)


def _capacity(model: ModelFacts, share: MemoryShare, settings: Mapping[str, Value]) -> KvCapacity:
    if share.weights >= share.bytes:
        short = f"weights of {share.weights / 1e9:.1f} GB do not fit: {share.place} leaves"
        text = f"{short} {share.bytes / 1e9:.1f} GB to weights and KV cache"
        return KvCapacity(token_bytes=share.token_bytes, missing=text)
    tokens = share.tokens
    most = _useful(model, settings, tokens) or tokens
    return KvCapacity(min(tokens, most), "about", share.token_bytes)


def _useful(model: ModelFacts, settings: Mapping[str, Value], tokens: int) -> int | None:
    """Most tokens that running requests can use: full contexts of as many requests as run at once
    in a pool of `tokens`. None: the context length is unknown."""
    context = settings.get("context_length") or model.context_tokens
    requests = settings.get("max_running_requests")
    if requests is None:
        requests = requests_in_pool(tokens, int(settings["cuda_graph_max_batch"]))
    return int(requests) * int(context) if context else None


def memory_limit_bytes(pool: PlannedPool) -> int | None:
    """Memory limit of an engine's container; None: without one."""
    resources = pool.manifest["spec"].get("resources") or {}
    limit = amount((resources.get("limits") or {}).get("memory"))
    return None if limit is None else int(limit)


def engine_kv_capacity(model: ModelFacts | None, pool: PlannedPool) -> KvCapacity:
    """The KV capacity of one engine of the pool. `model`: None if its sizes are unknown."""
    settings, limit = resolved_values(pool.settings), memory_limit_bytes(pool)
    return kv_capacity_of(model, pool.accelerator.accelerator, settings, limit)


def capacity_lines(
    spec: InferenceServiceSpec, model: ModelFacts | None, pool: PlannedPool
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


def running_lines(model: ModelFacts | None, pool: PlannedPool) -> Iterator[str]:
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
    spec: InferenceServiceSpec, model: ModelFacts | None, pool: PlannedPool
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
