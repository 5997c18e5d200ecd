"""What the labels of every vendor and cloud say, and which sizes follow from it."""

from __future__ import annotations

import pytest
from sluice_contract.config.accelerators import (
    PRODUCTS,
    Accelerator,
    labels_near,
    product_row,
    same_product,
)
from sluice_contract.config.engine import EngineSettings
from sluice_contract.config.sizing import resolve_settings
from sluice_operator.accelerators.find import find_accelerator
from sluice_operator.accelerators.labels import MACHINES, gpus_of
from sluice_operator.accelerators.node_requirements import unusual_spelling
from sluice_operator.api.pools import AcceleratorSpec, Pool
from sluice_operator.kube.kinds import Manifest

from tests.operator.accelerators.recorded_nodes import GPU, NODES, node


@pytest.mark.parametrize("name", NODES)
def test_a_node_tells_product_memory_and_sizes(name: str) -> None:
    recorded = NODES[name]
    found = gpus_of(node(name), recorded.resource)
    assert (found.product, found.memory_mib) == (recorded.product, recorded.memory_mib)
    assert found.count == recorded.count
    pool = Pool(accelerator=AcceleratorSpec(resource_name=recorded.resource))
    accelerator = find_accelerator(pool, (node(name),)).accelerator
    resolved = resolve_settings(EngineSettings(), accelerator)
    assert resolved["chunk_size"].value == recorded.chunk_size
    assert resolved["chunk_size"].origin == recorded.origin


@pytest.mark.parametrize("name", NODES)
def test_what_is_not_certain_is_said(name: str) -> None:
    recorded = NODES[name]
    pool = Pool(accelerator=AcceleratorSpec(resource_name=recorded.resource))
    check = find_accelerator(pool, (node(name),)).verified
    sized_by = resolve_settings(
        EngineSettings(), find_accelerator(pool, (node(name),)).accelerator
    )["chunk_size"].source
    expected = {"Product": "NodeLabels", "Memory": "SizedByMemory", "General": "ProductUnknown"}
    if recorded.product is None:
        assert (check.status, check.reason) == ("Unknown", "ProductUnknown")
    else:
        assert check.reason == expected[sized_by.value]
        assert check.status == ("Unknown" if sized_by.value == "General" else "True")
    assert name in check.message


def test_a_machine_type_has_a_product_of_the_table_and_no_two_rows() -> None:
    for pattern, product in MACHINES:
        settings = resolve_settings(EngineSettings(), Accelerator(product=product, count=1))
        assert settings["chunk_size"].source == "Product", pattern.pattern
    for name, recorded in NODES.items():
        for value in recorded.labels.values():
            matching = {product for pattern, product in MACHINES if pattern.search(value)}
            assert len(matching) <= 1, (name, matching)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("nvidia-tesla-a100", "NVIDIA-A100-SXM4-40GB", True),
        ("nvidia-tesla-a100", "NVIDIA-A100-SXM4-80GB", False),
        ("h100", "NVIDIA-H100-80GB-HBM3", True),
        ("Tesla-T4-SHARED", "Tesla T4", True),
        ("Brand-New", "NVIDIA Brand New", True),
        ("A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", True),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-40GB", False),
    ],
)
def test_products_are_the_same_under_the_names_of_labels_drivers_and_clouds(
    one: str, other: str, same: bool
) -> None:
    assert same_product(one, other) is same


def test_a_node_without_labels_or_with_odd_ones_has_what_it_offers() -> None:
    odd = node("gfd-a100")
    odd["metadata"]["labels"] = {"nvidia.com/gpu.product": "", "nvidia.com/gpu.memory": "much"}
    assert gpus_of(odd, GPU).product is None
    assert gpus_of(odd, GPU).memory_mib is None
    odd["status"] = {"allocatable": {GPU: "-1"}}
    assert gpus_of(odd, GPU).count == 0
    del odd["metadata"]["labels"], odd["status"]
    assert gpus_of(odd, GPU).count == 0


def test_each_known_label_falls_under_its_own_row() -> None:
    for row in PRODUCTS:
        assert row.labels
        assert [product_row(label) for label in row.labels] == [row] * len(row.labels)


@pytest.mark.parametrize(
    ("product", "near"),
    [
        ("NVIDIA-H100-80GB-HBM3", ()),
        ("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", ()),
        ("Tesla-T4-SHARED", ()),
        ("NVIDIA-H100", ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL")),
        ("A100-80", ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe")),
        ("NVIDIA-L40SX", ("NVIDIA-L40S", "NVIDIA-L40")),
        ("NVIDIA-Brand-New", ()),
    ],
)
def test_labels_near_a_product_that_no_node_is_known_to_have(
    product: str, near: tuple[str, ...]
) -> None:
    assert labels_near(product) == near


@pytest.mark.parametrize(
    ("accelerator", "warned"),
    [
        (
            {"product": "H100"},
            "itself H100 (nvidia.com/gpu.product); write one of NVIDIA-H100-80GB-HBM3",
        ),
        (
            {"product": "MI300X", "resourceName": "amd.com/gpu"},
            "one of AMD_Instinct_MI300X_OAM",
        ),
        ({"product": "NVIDIA-H200"}, None),
        ({"product": "nvidia-h100", "productLabel": "cloud.google.com/gke-accelerator"}, None),
        ({}, None),
    ],
)
def test_an_unusual_spelling_is_warned_of(accelerator: Manifest, warned: str | None) -> None:
    found = unusual_spelling(AcceleratorSpec.model_validate(accelerator))
    assert found is None if warned is None else warned in (found or "")
