"""Which services hear of a node, and that a group of nodes is one reason to look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import NodeChange
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.nodes import COLLECT_SECONDS, NodeReactions, concerns

from tests.operator.virtual_time import FakeClock

PRODUCT = "NVIDIA-A100-SXM4-40GB"


def node(product: str = PRODUCT, gpus: str = "8") -> Manifest:
    return {
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": product}},
        "spec": {},
        "status": {"allocatable": {"nvidia.com/gpu": gpus} if gpus else {"cpu": "4"}},
    }


def service(accelerator: dict[str, Any] | None, name: str = "chat") -> Manifest:
    pool = {"accelerator": accelerator} if accelerator is not None else {}
    spec = {"model": {"uri": "dummy://qwen3-tiny"}, "replicas": 1, **pool}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


@pytest.mark.parametrize(
    ("asked", "change", "expected"),
    [
        ({"product": PRODUCT}, NodeChange(None, node()), True),
        ({"product": PRODUCT}, NodeChange(node(), None), True),
        ({"count": 1}, NodeChange(None, node("other")), True),
        ({"product": PRODUCT}, NodeChange(node("other"), node()), True),
        ({"product": PRODUCT}, NodeChange(None, node("other")), False),
        ({"product": PRODUCT}, NodeChange(None, node(gpus="")), False),
        (None, NodeChange(None, node()), False),
    ],
)
def test_a_service_is_concerned_by_nodes_that_have_its_accelerator(
    asked: dict[str, Any] | None, change: NodeChange, expected: bool
) -> None:
    assert concerns(service(asked), [change]) is expected


async def test_nodes_that_come_together_make_each_service_be_looked_at_once() -> None:
    keys, looks, clock, ended = list[Key](), list[str](), FakeClock(), asyncio.Event()

    def services() -> Iterator[Manifest]:
        looks.append("look")
        yield from (service({"count": 1}, "gpu"), service(None, "cpu"))

    def add(key: Key) -> None:
        keys.append(key)
        ended.set()

    reactions = NodeReactions(services, clock, add)
    running = asyncio.create_task(reactions.run())
    clock.on_sleep = lambda: reactions.changed([NodeChange(None, node())] * 10)
    reactions.changed([NodeChange(None, node(gpus=""))])
    await asyncio.sleep(0)
    assert clock.elapsed_seconds == 0, "a node without devices concerns nobody"
    reactions.changed([NodeChange(None, node())] * 100)
    await ended.wait()
    running.cancel()
    assert clock.elapsed_seconds == COLLECT_SECONDS
    assert keys == [Key("InferenceService", "default", "gpu")]
    assert len(looks) == 1
