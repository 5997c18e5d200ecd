"""Which keys an event of an object leads to."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.informer.keys import Key, keys_of
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    Kind,
)

CHAT = Key("InferenceService", "team", "chat")
CHAX = Key("InferenceService", "team", "chax")
CHAT_MIXED = Key("EnginePool", "team", "chat-mixed")


def item(name: str, owner: str | None = None, **found: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "team"}
    metadata["labels"] = {f"{labels.GROUP}/{key}": value for key, value in found.items()}
    if owner is not None:
        kind, _, owner_name = owner.partition("/")
        version = "apps/v1" if kind == "ReplicaSet" else labels.API_VERSION
        metadata["ownerReferences"] = [
            {"apiVersion": version, "kind": kind, "name": owner_name, "controller": True}
        ]
    return {"metadata": metadata, "spec": {}}


CASES = [
    (SERVICE, item("chat", "InferenceService/chat", service="chat"), {CHAT}),
    (DEPLOYMENT, item("chat-router", "InferenceService/chat", service="chat"), {CHAT}),
    (
        DEPLOYMENT,
        item("chat-mixed-1", "EnginePool/chat-mixed", service="chat", role="mixed"),
        {CHAT, CHAT_MIXED},
    ),
    (POD, item("p", "ReplicaSet/x", service="chat", role="router"), {CHAT}),
    (POD, item("p", "ReplicaSet/x", service="chat", role="mixed"), {CHAT_MIXED}),
    (ENGINE_POOL, item("chat-mixed", "InferenceService/chat"), {CHAT, CHAT_MIXED}),
    (
        ENGINE_POOL,
        item("chat-mixed", "InferenceService/chat", service="chax"),
        {CHAT, CHAX, CHAT_MIXED},
    ),
    (
        ENGINE_POOL,
        item("chat-mixed", "InferenceService/chax", service="chat"),
        {CHAT, CHAX, CHAT_MIXED},
    ),
    (SERVICE, item("chat", "InferenceService/chax", service="chat"), {CHAT, CHAX}),
    (SERVICE, item("chat", "InferenceService/chat", service="chax"), {CHAT, CHAX}),
    (CONFIG_MAP, item("lost-its-owner", service="chat"), {CHAT}),
    (
        POD_DISRUPTION_BUDGET,
        item("lost-its-owner", service="chat", role="mixed"),
        {CHAT, CHAT_MIXED},
    ),
    (CONFIG_MAP, item("not-ours"), set()),
]


@pytest.mark.parametrize(("kind", "changed", "expected"), CASES)
def test_an_event_leads_to_whom_it_concerns(
    kind: Kind, changed: dict[str, Any], expected: set[Key]
) -> None:
    assert keys_of(kind, changed) == expected


@pytest.mark.parametrize("mode", ["Mixed", "Disaggregated"])
def test_a_service_concerns_its_pools_of_either_mode(mode: str) -> None:
    chat = item("chat") | {"spec": {"mode": mode}}
    names = {key.name for key in keys_of(INFERENCE_SERVICE, chat)}
    assert names == {"chat", "chat-mixed", "chat-prefill", "chat-decode"}
