"""KV capacity in a preview, pool by pool: as text for people, and as JSON for programs.

The operator knows the config.json only of models from a hub or bucket; of other models it has only
the spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_contract.config.accelerators import MAX_RUNNING_REQUESTS, requests_in_pool
from sluice_contract.config.sizing import resolved_values

from sluice_operator.api.quantities import amount
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ModelStatus
from sluice_operator.delivery.kv_capacity import KvCapacity, kv_capacity_of
from sluice_operator.delivery.resolved_model import is_fetched
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.rollout.planned_rollout import PlannedPool

BY_ENGINE: Final = "which an engine chooses at its start from its KV pool"


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
