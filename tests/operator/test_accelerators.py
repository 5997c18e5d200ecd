"""Which accelerator a pool will land on, by spec and by the nodes' labels."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.accelerators import find_accelerator, node_selector
from sluice_operator.api.pools import AcceleratorSpec, PoolSpec
from sluice_operator.kube.kinds import Manifest

A100, H100 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"


def _node(name: str, product: str | None, memory: int = 0, gpus: int = 8, **extra: str) -> Manifest:
    found = dict(extra)
    if product:
        found |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)}
    return {
        "metadata": {"name": name, "labels": found},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
    }


NODES = (_node("a", A100, 40960), _node("h", H100, 81559), _node("cpu", None, gpus=0))


def _pool(**values: Any) -> PoolSpec:
    return PoolSpec.model_validate(values)


@pytest.mark.parametrize(
    ("pool", "nodes", "text", "status", "reason"),
    [
        ({}, None, "CPU", "True", "NotRequired"),
        ({}, NODES, "CPU", "True", "NotRequired"),
        ({"accelerator": {}}, None, "1 x nvidia.com/gpu", "Unknown", "NodesNotReadable"),
        ({"accelerator": {"product": A100}}, None, f"1 x {A100}", "Unknown", "NodesNotReadable"),
        ({"accelerator": {"product": H100}}, NODES, f"1 x {H100}", "True", "NodeLabels"),
        ({"accelerator": {}}, NODES, f"1 x {A100}", "True", "SmallestOfSeveral"),
        ({"accelerator": {}}, NODES[2:], "1 x nvidia.com/gpu", "False", "NoSuchNode"),
        ({"accelerator": {"product": "T4"}}, NODES, "1 x T4", "False", "NoSuchNode"),
        ({"accelerator": {"count": 16}}, NODES, "16 x nvidia.com/gpu", "False", "NoSuchNode"),
        (
            {"accelerator": {}},
            (_node("x", None),),
            "1 x nvidia.com/gpu",
            "Unknown",
            "ProductUnknown",
        ),
    ],
)
def test_accelerator_and_certainty(
    pool: dict[str, Any], nodes: tuple[Manifest, ...] | None, text: str, status: str, reason: str
) -> None:
    found = find_accelerator(_pool(**pool), nodes)
    assert found.text == text
    assert (found.verified.status, found.verified.reason) == (status, reason)


def test_what_there_is_instead_is_told() -> None:
    found = find_accelerator(_pool(accelerator={"product": "T4"}), NODES)
    assert found.verified.message == f"No node has 1 x T4; there are: {A100}, {H100}."


def test_only_nodes_the_pool_can_land_on_count() -> None:
    nodes = (_node("a", A100, 40960, zone="far"), _node("h", H100, 81559, zone="near"))
    pool = _pool(accelerator={}, template={"nodeSelector": {"zone": "near"}})
    found = find_accelerator(pool, nodes)
    assert found.accelerator.product == H100
    assert found.accelerator.memory_mib == 81559


def test_the_product_binds_the_pods() -> None:
    spec = AcceleratorSpec(product=A100)
    assert node_selector(spec, {"zone": "a"}) == {"zone": "a", "nvidia.com/gpu.product": A100}
    assert node_selector(None, None) == {}
