"""What a preview says of the room for KV cache, pool by pool: for people, and for programs.

Only of a hub's model: of others the operator knows nothing but where they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice_contract.sizing import resolved_values

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ModelStatus
from sluice_operator.kube.kinds import Manifest
from sluice_operator.model.pinned import is_fetched
from sluice_operator.model.room import Room, room_of
from sluice_operator.service.plan import PlannedPool


def kv_room(model: ModelStatus | None, pool: PlannedPool) -> Room:
    """The room of one engine of the pool; `model`: as it was resolved, if it was."""
    if model is None:
        return Room(missing="the model is not resolved yet")
    return room_of(model, pool.accelerator.accelerator, resolved_values(pool.settings))


def room_lines(
    spec: InferenceServiceSpec, model: ModelStatus | None, pool: PlannedPool
) -> Iterator[str]:
    """An indented line; none of a model that is not a hub's."""
    if not is_fetched(spec.model):
        return
    room = kv_room(model, pool)
    each = f", {room.token_bytes:,} bytes each" if room.token_bytes else ""
    if room.tokens is not None:
        yield f"  KV pool: about {room.tokens:,} tokens an engine{each}"
    else:
        yield f"  KV pool: tokens that fit are not known{each}: {room.missing}"


def room_json(
    spec: InferenceServiceSpec, model: ModelStatus | None, pool: PlannedPool
) -> Manifest | None:
    """None of a model that is not a hub's."""
    if not is_fetched(spec.model):
        return None
    room = kv_room(model, pool)
    return {"tokens": room.tokens, "tokenBytes": room.token_bytes, "missing": room.missing}
