"""Whether a pool's engines run on what they are sized for, by what they report."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.api.conditions import Check
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.accelerator_verified import (
    accelerator_verified,
    sized_for,
    with_missing_node,
)

from tests.operator.examples import service, service_observed

A100, H100 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"


def node(product: str, memory: int) -> Manifest:
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)}
    allocatable = {"nvidia.com/gpu": "8"}
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": allocatable}}


def planned(accelerator: Manifest | None) -> ServicePlan:
    spec = {**({"accelerator": accelerator} if accelerator is not None else {})}
    return plan_service(service_observed(service(spec), nodes=(node(A100, 40_960),)))


def reported(product: str | None, engines: int, **more: Any) -> Manifest:
    return {"count": 1, "engines": engines, **({"product": product} if product else {}), **more}


@pytest.mark.parametrize(
    ("accelerator", "told", "status", "reason", "says"),
    [
        ({}, [], "True", "NodeLabels", A100),
        ({}, [reported(A100, 2)], "True", "ReportedByEngines", f"2 engines report 1 x {A100}."),
        ({}, [reported(H100, 1)], "True", "ReportedByEngines", f"{H100}; sized for 1 x {A100}."),
        ({"product": A100}, [reported(A100.lower(), 1)], "True", "ReportedByEngines", "1 engine"),
        (
            {"product": A100},
            [reported(A100, 3), reported(H100, 2)],
            "False",
            "OtherProduct",
            f"asked for is {A100}, and 2 of them have another",
        ),
        ({}, [reported("Tesla-T4", 1)], "False", "SmallerThanSizedFor", f"those of 1 x {A100}"),
        ({}, [{"count": 0, "engines": 1}], "False", "SmallerThanSizedFor", "1 engine reports CPU"),
    ],
)
def test_what_engines_report_counts_before_what_nodes_say(
    accelerator: Manifest, told: list[Manifest], status: str, reason: str, says: str
) -> None:
    (pool,) = planned(accelerator).pools
    live = {**pool.manifest, "status": {"accelerators": told}} if told else None
    check = accelerator_verified(pool, live)
    assert check is not None
    assert (check.status, check.reason) == (status, reason)
    assert says in check.message


def test_nothing_is_verified_on_cpus() -> None:
    (pool,) = planned(None).pools
    assert accelerator_verified(pool, None) is None


def test_engines_that_find_none_say_so_before_anything_else() -> None:
    (pool,) = planned({}).pools
    text = "0 of 1 engines ready; pod p: accelerator: 1 x GPU is asked for"
    updated = {"type": "Updated", "status": "False", "reason": "AcceleratorMissing"}
    live = {**pool.manifest, "status": {"conditions": [{**updated, "message": text}]}}
    check = accelerator_verified(pool, live)
    assert check is not None
    assert (check.status, check.reason) == ("False", "AcceleratorMissing")
    assert check.message == f"Pool mixed: {text}"


def test_the_engines_file_names_what_it_is_sized_for() -> None:
    (pool,) = planned({"count": 4}).pools
    accelerator = sized_for(pool.config_map)
    assert accelerator is not None
    assert (accelerator.product, accelerator.memory_mib, accelerator.count) == (A100, 40_960, 4)
    assert (pool.settings["chunk_size"].value, pool.settings["chunk_size"].origin) == (
        4096,
        "A100-40GB TP4",
    )
    (on_cpus,) = planned(None).pools
    assert sized_for(on_cpus.config_map) is None


def test_a_pod_without_a_place_names_the_product_that_no_node_has() -> None:
    """What else a pool waits for keeps its own words, and so does one whose product is there."""
    pod = "pod p: no node takes it (0/1 nodes are available)"
    said = Check("False", "Unschedulable", f"Pool mixed: 0 of 1 engines ready; {pod}")
    (missing,), (there,) = planned({"product": "T9"}).pools, planned({"product": A100}).pools
    told = with_missing_node(said, missing)
    assert told.reason == "Unschedulable"
    assert told.message == (
        f"Pool mixed: 0 of 1 engines ready. {missing.accelerator.verified.message} "
        "Pod p waits (0/1 nodes are available)."
    )
    assert "No node has 1 x T9 that the pool may land on; nodes have " in told.message
    assert with_missing_node(said, there) == said
    other = Check("False", "ImagePullBackOff", "no image")
    assert with_missing_node(other, missing) == other
