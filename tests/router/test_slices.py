"""EndpointSlices to engines: conditions, ports, address families, duplicates."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.cluster.labels import Role
from sluice_router.engines import Phase
from sluice_router.slices import endpoints_of

from tests.router.fake_kube import endpoint_slice


def found(*slices: dict[str, Any]) -> list[tuple[str, str, Phase]]:
    return [(e.name, e.url, e.phase) for e in endpoints_of(slices, "chat", "http")]


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        ({"ready": True, "serving": True, "terminating": False}, Phase.READY),
        ({}, Phase.READY),
        ({"ready": False, "serving": False, "terminating": False}, Phase.UNREADY),
        ({"ready": False, "serving": True, "terminating": True}, Phase.TERMINATING),
        ({"ready": True, "terminating": True}, Phase.TERMINATING),
    ],
)
def test_conditions_become_a_phase(conditions: dict[str, bool], phase: Phase) -> None:
    assert found(endpoint_slice("s", ("p", conditions))) == [("p", "http://10.0.0.1:8000", phase)]


def test_several_slices_are_one_list_in_order_of_names() -> None:
    slices = endpoint_slice("s1", "b"), endpoint_slice("s2", "a", "c")
    assert [name for name, _, _ in found(*slices)] == ["a", "b", "c"]


def test_a_pod_in_two_slices_counts_once_and_as_ready_if_any_says_so() -> None:
    old = endpoint_slice("old", ("p", {"ready": False}))
    new = endpoint_slice("new", "p")
    assert found(old, new) == found(new, old) == [("p", "http://10.0.0.1:8000", Phase.READY)]


def test_ipv6_is_bracketed_and_gives_way_to_ipv4() -> None:
    six = endpoint_slice("six", "p") | {"addressType": "IPv6"}
    six["endpoints"][0]["addresses"] = ["fd00::1"]
    assert found(six) == [("p", "http://[fd00::1]:8000", Phase.READY)]
    assert found(six, endpoint_slice("four", "p")) == found(endpoint_slice("four", "p"))


@pytest.mark.parametrize(
    "change",
    [
        {"ports": [{"name": "other", "port": 1}]},
        {"ports": None},
        {"endpoints": None},
        {"addressType": "FQDN"},
        {"metadata": {"name": "s"}},
        {"metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "chat"}}},
        {"metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "chat-other"}}},
    ],
)
def test_what_is_no_engine_is_left_out(change: dict[str, Any]) -> None:
    assert found(endpoint_slice("s", "p") | change) == []


def test_the_role_comes_from_the_service() -> None:
    (endpoint,) = endpoints_of([endpoint_slice("s", "p", role="decode")], "chat", "http")
    assert endpoint.role is Role.DECODE
