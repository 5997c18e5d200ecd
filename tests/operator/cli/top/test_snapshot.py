"""What is read for `sluice top`, and what becomes of what may not be read."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from sluice_contract.cluster import labels
from sluice_operator.cli.rollout.session import MissingServiceError
from sluice_operator.cli.top.snapshot import ClusterReader, Snapshot
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError, UnavailableError
from sluice_operator.kube.kinds import Manifest

from tests.operator.cli.top.recorded import NOW, load, pod, pool, service, service_load

SLUICE = f"/apis/{labels.API_VERSION}/namespaces/shop"
CORE = "/api/v1/namespaces/shop"
LOAD = f"{CORE}/pods/chat-router-a:8080/proxy/load"
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
            **{PATHS[name]: answer for name, answer in changes.items()},
        }
        self.asked: list[tuple[str, str]] = []

    async def send(self, request: Request) -> Response:
        self.asked.append((request.path, request.query.get("labelSelector", "")))
        answer = self.answers.get(request.path, Response(404, {"reason": "NotFound"}))
        if isinstance(answer, Exception):
            raise answer
        return Response(answer.status, json.loads(json.dumps(answer.body)))


PATHS = {
    "services": f"{SLUICE}/inferenceservices",
    "pools": f"{SLUICE}/enginepools",
    "pods": f"{CORE}/pods",
    "load": LOAD,
}


async def read(api: Answers, name: str | None = None) -> Snapshot:
    return await ClusterReader(api, lambda: NOW, "shop", name).snapshot()


async def test_services_pools_pods_and_one_load_a_service_are_read() -> None:
    api = Answers()
    found = await read(api)
    assert [item["metadata"]["name"] for item in found.services] == ["chat", "tiny"]
    assert (len(found.pools), len(found.pods), found.notes) == (1, 4, ())
    (asked,) = found.loads.items()
    assert asked[0] == ("shop", "chat")
    assert asked[1].router == "chat-router-a"
    assert asked[1].load.waiting_requests == 2
    assert sorted(path for path, _ in api.asked) == sorted(PATHS.values())


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
    found = await read(Answers(**{what: FORBIDDEN}))
    (note,) = found.notes
    assert note.endswith(f" in namespace shop; a Role needs the rule {rule}")
    assert len(found.services) == 2
    assert bool(found.loads) is (what == "pools")


async def test_without_the_right_to_read_services_there_is_nothing_to_show() -> None:
    with pytest.raises(ApiError, match="is forbidden"):
        await read(Answers(services=FORBIDDEN))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Response(503, {"message": "dial tcp: i/o timeout"}), "503 dial tcp: i/o timeout"),
        (UnavailableError(f"GET {LOAD}", "TimeoutError"), f"GET {LOAD}: TimeoutError"),
        (Response(200, {"draining": 1}), "its answer is not the load of a service"),
    ],
)
async def test_a_router_that_cannot_be_reached_is_named(
    answer: Response | Exception, problem: str
) -> None:
    found = await read(Answers(load=answer))
    assert not found.loads
    assert found.notes == (
        f"router chat-router-a in namespace shop reports no load: {problem}; the API server has to "
        "reach port 8080 of routers (NetworkPolicy)",
    )


async def test_an_api_server_that_is_away_is_no_missing_right() -> None:
    with pytest.raises(UnavailableError):
        await read(Answers(pods=Response(503, {"reason": "ServiceUnavailable"})))
