"""Which accelerator a pool will land on, by spec and by the nodes' labels."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.cluster.labels import Role
from sluice_operator.accelerators.find import find_accelerator, has_accelerator
from sluice_operator.accelerators.node_requirements import node_selector
from sluice_operator.api.pools import AcceleratorSpec, Pool
from sluice_operator.api.service import InferenceServiceSpec
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


def _pool(role: Role = Role.MIXED, **values: Any) -> Pool:
    spec = {"model": {"uri": "dummy://a"}} | values
    return InferenceServiceSpec.model_validate(spec).pool(role)


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
        (
            {"accelerator": {"claimTemplate": "gpus", "count": 2}},
            NODES,
            "2 x device of gpus",
            "Unknown",
            "DevicesOfClaim",
        ),
        (
            {"accelerator": {"claimTemplate": "gpus", "count": 2, "product": A100}},
            None,
            f"2 x {A100}",
            "Unknown",
            "DevicesOfClaim",
        ),
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
    message = find_accelerator(_pool(accelerator={"product": "T4"}), NODES).verified.message
    assert message == f"No node has 1 x T4 that the pool may land on; nodes have {A100}, {H100}."
    message = find_accelerator(_pool(accelerator={"product": "H100"}), NODES).verified.message
    assert message == f"No node has 1 x H100 that the pool may land on; products near it: {H100}."
    mig = _node("g", None, 0, 0)
    mig["status"]["allocatable"] |= {"nvidia.com/mig-3g.20gb": "2"}
    message = find_accelerator(_pool(accelerator={"product": "T4"}), (mig,)).verified.message
    assert message == "No node has 1 x T4, nor another GPU of nvidia.com/gpu."


@pytest.mark.parametrize("nodes", [(), ("cpus",)])
def test_a_cluster_without_gpus_says_what_to_do(nodes: tuple[str, ...]) -> None:
    without = tuple(_node(name, None, 0, 0) for name in nodes)
    message = find_accelerator(_pool(accelerator={"product": "T4"}), without).verified.message
    assert message == (
        "No node offers nvidia.com/gpu: install its device plugin, or leave out spec.accelerator "
        "to serve on CPUs."
    )


def test_a_product_under_another_label_says_which_to_set() -> None:
    node = _node("g", None, 0, 8, **{"cloud.google.com/gke-accelerator": "nvidia-l4"})
    asked = {"product": "nvidia-l4"}
    message = find_accelerator(_pool(accelerator=asked), (node,)).verified.message
    assert "as label nvidia.com/gpu.product; g have it as label cloud.google.com/" in message
    assert message.endswith("set spec.accelerator.productLabel")
    asked["productLabel"] = "cloud.google.com/gke-accelerator"
    found = find_accelerator(_pool(accelerator=asked), (node,))
    assert (found.text, found.verified.reason) == ("1 x nvidia-l4", "NodeLabels")
    selector = node_selector(AcceleratorSpec.model_validate(asked), None)
    assert selector == {"cloud.google.com/gke-accelerator": "nvidia-l4"}


@pytest.mark.parametrize(
    ("accelerator", "section"), [({"product": "x"}, "spec.prefill"), (None, "spec")]
)
def test_what_is_to_be_set_is_in_the_section_that_has_the_accelerator(
    accelerator: dict[str, str] | None, section: str
) -> None:
    prefill = {"accelerator": accelerator} if accelerator else {}
    pool = _pool(Role.PREFILL, accelerator={"product": "x"}, prefill=prefill)
    node = _node("g", "x", 0)
    del node["metadata"]["labels"]["nvidia.com/gpu.memory"]
    message = find_accelerator(pool, (node,)).verified.message
    assert f"set {section}.engine.chunkSize and memoryPercent" in message
    node["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "x"}
    message = find_accelerator(pool, (node,)).verified.message
    assert f"set {section}.accelerator.productLabel" in message


TAINT = {"key": "team", "value": "search", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "lands"),
    [
        (TAINT, None, False),
        (TAINT, [{"key": "team", "operator": "Exists"}], True),
        (TAINT, [{"key": "team", "value": "search", "effect": "NoSchedule"}], True),
        (TAINT, [{"key": "team", "value": "other"}], False),
        (TAINT, [{"key": "team", "operator": "Exists", "effect": "NoExecute"}], False),
        (TAINT, [{"operator": "Exists"}], True),
        (TAINT | {"effect": "PreferNoSchedule"}, None, True),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, None, True),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, None, True),
    ],
)
def test_a_node_whose_taints_the_pods_do_not_tolerate_does_not_count(
    taint: dict[str, str], tolerations: list[dict[str, str]] | None, lands: bool
) -> None:
    node = _node("a", A100, 40960) | {"spec": {"taints": [taint]}}
    template = {"tolerations": tolerations} if tolerations else {}
    pool = _pool(accelerator={}, template=template)
    assert (find_accelerator(pool, (node,)).verified.reason == "NodeLabels") is lands
    assert has_accelerator(node, pool) is lands


def test_the_smallest_of_several_is_the_one_with_the_least_memory() -> None:
    """Also where a label tells the product alone; what is unknown counts as smallest."""
    label = {"node.kubernetes.io/instance-type": "g6.xlarge"}
    nodes = (*NODES, _node("l4", None, 0, 8, **label))
    found = find_accelerator(_pool(accelerator={}), nodes)
    assert found.accelerator.product == "L4"
    assert "can land on L4, NVIDIA-A100-SXM4-40GB" in found.verified.message
    found = find_accelerator(_pool(accelerator={}), (*nodes, _node("x", None)))
    assert (found.accelerator.product, found.verified.status) == (None, "Unknown")


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


def test_nodes_do_not_concern_an_engine_whose_devices_are_of_a_claim() -> None:
    claimed = {"claimTemplate": "gpus", "count": 1}
    assert has_accelerator(NODES[0], _pool(accelerator={"count": 1}))
    assert not has_accelerator(NODES[0], _pool(accelerator=claimed))
