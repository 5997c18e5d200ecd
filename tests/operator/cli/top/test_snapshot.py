"""What is read for `sluice top`, and what becomes of what may not be read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest
from sluice_contract.cluster import labels
from sluice_operator.cli.rollout.session import MissingServiceError
from sluice_operator.cli.top.snapshot import ClusterReader, Snapshot
from sluice_operator.kube.connection import TEXT, Request, Response
from sluice_operator.kube.errors import ApiError, UnavailableError
from sluice_operator.kube.kinds import Manifest
from sluice_router.telemetry import RouterCounts, Telemetry
from sluice_router.telemetry import RouterLoad as TelemetryLoad

from tests.operator.cli.top.recorded import NOW, load, pod, pool, service, service_load

SLUICE = f"/apis/{labels.API_VERSION}/namespaces/shop"
CORE = "/api/v1/namespaces/shop"
LOAD = f"{CORE}/pods/chat-router-a:8080/proxy/load"
METRICS = f"{CORE}/pods/chat-router-a:8080/proxy/metrics"
OTHER_METRICS = f"{CORE}/pods/chat-router-b:8080/proxy/metrics"


def exposition(answered: int) -> Response:
    """A router's own text, after so many streams of 30 ms."""
    telemetry = Telemetry([labels.Role.MIXED])
    for _ in range(answered):
        telemetry.completion_began()
        telemetry.first_byte(0.03, streams=True)
        telemetry.first_byte(9.0, streams=False)
        telemetry.completion_ended("answered")
    return Response(
        200, telemetry.render([], RouterCounts({}, {}), TelemetryLoad(0, 0, 0)).decode()
    )


FORBIDDEN = Response(403, {"kind": "Status", "reason": "Forbidden", "message": "is forbidden"})


def listing(*items: Manifest) -> Response:
    return Response(200, {"metadata": {}, "items": list(items)})


class Answers:
    """An API server that knows a few paths."""

    def __init__(self, **changes: Response | Exception) -> None:
        report = service_load(load("chat-mixed-1-a", "mixed", 3, 4, 100), waiting=2)
        routers = (
            pod("chat", "router", "b"),
            pod("chat", "router", "a"),
            pod("chat", "router", "0", is_ready=False),
        )
        self.answers: Mapping[str, Response | Exception] = {
            f"{SLUICE}/inferenceservices": listing(service("tiny"), service("chat")),
            f"{SLUICE}/inferenceservices/chat": Response(200, service("chat")),
            f"{SLUICE}/enginepools": listing(pool("chat", "mixed")),
            f"{CORE}/pods": listing(*routers, pod("chat", "mixed", "1-a")),
            LOAD: Response(200, report.to_json_dict() | {"newer": 1}),
            METRICS: exposition(3),
            OTHER_METRICS: exposition(4),
            **{PATHS[name]: answer for name, answer in changes.items()},
        }
        self.asked: list[tuple[str, str]] = []

    async def send(self, request: Request) -> Response:
        self.asked.append((request.path, request.query.get("labelSelector", "")))
        assert (request.accept == TEXT) is request.path.endswith("/metrics")
        answer = self.answers.get(request.path, Response(404, {"reason": "NotFound"}))
        if isinstance(answer, Exception):
            raise answer
        return Response(answer.status, json.loads(json.dumps(answer.body)))


PATHS = {
    "services": f"{SLUICE}/inferenceservices",
    "pools": f"{SLUICE}/enginepools",
    "pods": f"{CORE}/pods",
    "load": LOAD,
    "metrics": METRICS,
    "others": OTHER_METRICS,
}


async def read(api: Answers, name: str | None = None) -> Snapshot:
    return await ClusterReader(api, lambda: NOW, "shop", name).snapshot()


async def test_services_pools_pods_one_load_a_service_and_all_counts_are_read() -> None:
    api = Answers()
    found = await read(api)
    assert [item["metadata"]["name"] for item in found.services] == ["chat", "tiny"]
    assert (len(found.pools), len(found.pods), found.notes) == (1, 4, ())
    (asked,) = found.loads.items()
    assert asked[0] == ("shop", "chat")
    assert asked[1].router == "chat-router-a"
    assert asked[1].load.waiting_requests == 2
    assert sorted(path for path, _ in api.asked) == sorted(PATHS.values())
    (counts,) = found.counts.values()
    assert {name: count.fates["answered"] for name, count in counts.items()} == {
        "chat-router-a": 3, "chat-router-b": 4,
    }  # fmt: skip
    first_tokens = counts["chat-router-a"].first_tokens
    assert (first_tokens[0.02], first_tokens[0.03], first_tokens[math.inf]) == (0, 3, 3)
    assert list(first_tokens) == sorted(first_tokens)


async def test_of_one_service_nothing_else_is_read() -> None:
    api = Answers()
    found = await read(api, "chat")
    assert [item["metadata"]["name"] for item in found.services] == ["chat"]
    selectors = dict(api.asked)
    assert selectors[f"{CORE}/pods"] == f"{labels.SERVICE}=chat"
    with pytest.raises(MissingServiceError, match="InferenceService gone is not in namespace shop"):
        await read(Answers(), "gone")


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ("pools", f'{{apiGroups: ["{labels.GROUP}"], resources: [enginepools], verbs: [list]}}'),
        ("pods", '{apiGroups: [""], resources: [pods], verbs: [list]}'),
        ("load", '{apiGroups: [""], resources: [pods/proxy], verbs: [get]}'),
    ],
)
async def test_a_missing_right_is_named_with_its_rule(what: str, rule: str) -> None:
    changes = dict.fromkeys(("load", "metrics", "others") if what == "load" else (what,), FORBIDDEN)
    found = await read(Answers(**changes))
    (note,) = found.notes
    assert note.endswith(f" in namespace shop; a Role needs the rule {rule}")
    assert len(found.services) == 2
    assert bool(found.loads) is bool(found.counts) is (what == "pools")


async def test_without_the_right_to_read_services_there_is_nothing_to_show() -> None:
    with pytest.raises(ApiError, match="is forbidden"):
        await read(Answers(services=FORBIDDEN))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Response(503, {"message": "dial tcp: i/o timeout"}), "503 dial tcp: i/o timeout"),
        (UnavailableError(f"GET {LOAD}", "TimeoutError"), f"GET {LOAD}: TimeoutError"),
        (Response(200, {"draining": 1}), "its answer is not the load of a router"),
    ],
)
async def test_a_router_that_cannot_be_reached_is_named(
    answer: Response | Exception, problem: str
) -> None:
    found = await read(Answers(load=answer, metrics=Response(503, None)))
    assert not found.loads
    assert found.notes == (
        f"router chat-router-a in namespace shop reports no load: {problem}; the API server has to "
        "reach port 8080 of routers (NetworkPolicy)",
    )


@pytest.mark.parametrize("text", ["", "x 1\n", "{", "# HELP", "sluice_router_ledger_total 1\n"])
async def test_counts_are_those_of_all_routers_or_of_none(text: str) -> None:
    found = await read(Answers(others=Response(200, text)))
    assert (len(found.loads), found.counts) == (1, {})
    (note,) = found.notes
    assert note.startswith("router chat-router-b in namespace shop reports no metrics: its answer")


async def test_an_api_server_that_is_away_is_no_missing_right() -> None:
    with pytest.raises(UnavailableError):
        await read(Answers(pods=Response(503, {"reason": "ServiceUnavailable"})))
