"""Carrying plans out: what is written, in which order, and above all what is not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.apply.applier import Applier
from sluice_operator.apply.plan import Plan, identity
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import CONFIG_MAP, SERVICE, Reference

from tests.operator.virtual_time import FakeClock

OBJECTS = json.loads((Path(__file__).parent / "live_objects.json").read_text())


class Server:
    """Answers every request with `answer`, after `refusals` of them; keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: dict[str, Any] = {}
        self.refusals = 0
        self.cause = "FieldValueDuplicate"

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        if self.refusals:
            self.refusals -= 1
            causes = [{"reason": self.cause, "field": "spec.ports[1].name", "message": "no"}]
            body = {"reason": "Invalid", "message": "no", "details": {"causes": causes}}
            return Response(422, body)
        return Response(200, self.answer)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def applier(server: Server) -> Applier:
    return Applier(ApiClient(server, lambda verb, plural: None), FakeClock())


def pair(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = copy.deepcopy(OBJECTS[kind])
    return found["desired"], found["live"]


async def test_at_rest_nothing_is_sent(applier: Applier, server: Server) -> None:
    desired = [OBJECTS[kind]["desired"] for kind in OBJECTS]
    live = [OBJECTS[kind]["live"] for kind in OBJECTS]
    await applier.carry_out(Plan(apply=tuple(desired)), live)
    assert server.requests == []


async def test_only_what_differs_is_sent_and_sent_whole(applier: Applier, server: Server) -> None:
    desired, live = pair("Service")
    live["spec"]["ports"][0]["targetPort"] = "elsewhere"
    server.answer = OBJECTS["Service"]["live"]
    others = [OBJECTS[kind] for kind in OBJECTS if kind != "Service"]
    plan = Plan(apply=(desired, *(other["desired"] for other in others)))
    await applier.carry_out(plan, [live, *(other["live"] for other in others)])
    (request,) = server.requests
    assert request.body == desired
    assert request.content_type == "application/apply-patch+yaml"
    assert request.query["force"] == "true"
    assert request.query["fieldManager"] == "sluice-operator"


async def test_what_was_there_and_is_different_now_is_handed_back(
    applier: Applier, server: Server
) -> None:
    desired, live = pair("Service")
    live["spec"]["ports"][0]["targetPort"] = "elsewhere"
    server.answer = copy.deepcopy(OBJECTS["Service"]["live"])
    server.answer["metadata"]["resourceVersion"] = "later"
    outcome = await applier.carry_out(Plan(apply=(pair("ConfigMap")[0], desired)), [live])
    (found,) = outcome.overwritten
    assert (found.desired, found.live) == (desired, live), "not what was made"


async def test_an_apply_that_changed_nothing_has_overwritten_nothing(
    applier: Applier, server: Server
) -> None:
    desired, live = pair("Service")
    server.answer = live = live | {"spec": {**live["spec"], "selector": {"set": "by a webhook"}}}
    assert (await applier.carry_out(Plan(apply=(desired,)), [live])).overwritten == ()
    assert len(server.requests) == 1


async def test_missing_objects_are_made_in_order_and_leftovers_deleted_last(
    applier: Applier, server: Server
) -> None:
    first, second = pair("Service")[0], pair("ConfigMap")[0]
    leftover = Reference(CONFIG_MAP, "default", "old", uid="u1")
    server.answer = OBJECTS["Service"]["live"]
    await applier.carry_out(Plan(apply=(second, first), prune=(leftover,)), [])
    assert [r.body.get("kind") for r in server.requests] == ["ConfigMap", "Service", None]
    assert server.requests[-1].method == "DELETE"
    assert server.requests[-1].body["preconditions"] == {"uid": "u1"}


async def test_a_value_that_the_server_alters_is_not_sent_again(
    applier: Applier, server: Server
) -> None:
    desired, live = pair("ConfigMap")
    desired["data"] = {"a.json": "sent"}
    live["data"] = {"a.json": "altered by a webhook"}
    server.answer = live
    assert await applier.apply(desired, None) is not None
    assert await applier.apply(desired, live) is None
    assert len(server.requests) == 1


@pytest.mark.parametrize("change", ["desired", "owner"])
async def test_an_altered_value_is_sent_again_once_something_changes(
    applier: Applier, server: Server, change: str
) -> None:
    desired, live = pair("ConfigMap")
    desired["data"] = {"a.json": "sent"}
    server.answer = copy.deepcopy(live)
    await applier.apply(desired, None)
    if change == "desired":
        desired["data"] = {"a.json": "sent now"}
    else:
        live["metadata"]["managedFields"][0]["fieldsV1"].pop("f:data")
    assert await applier.apply(desired, live) is not None
    assert len(server.requests) == 2


async def test_status_goes_to_its_subresource(applier: Applier, server: Server) -> None:
    _, live = pair("Deployment")
    live["apiVersion"], live["kind"] = "serving.sluice.dev/v1alpha1", "InferenceService"
    server.answer = live
    desired = {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {"name": "a", "namespace": "default", "uid": live["metadata"]["uid"]},
        "status": {"mode": "Mixed"},
    }
    await applier.apply(desired, live, "status")
    path = "/apis/serving.sluice.dev/v1alpha1/namespaces/default/inferenceservices/a/status"
    assert server.requests[0].path == path
    live["status"] = {"mode": "Mixed"}
    entry = {"manager": "sluice-operator", "operation": "Apply", "subresource": "status"}
    live["metadata"]["managedFields"].append({**entry, "fieldsV1": {"f:status": {"f:mode": {}}}})
    assert await applier.apply(desired, live, "status") is None


async def test_a_refused_apply_clears_tangled_lists_and_is_tried_once_more(
    server: Server, applier: Applier
) -> None:
    desired, live = pair("Service")
    live["spec"]["ports"][0]["port"] = 81
    server.refusals = 1
    server.answer = OBJECTS["Service"]["live"]
    assert await applier.apply(desired, live) is not None
    kinds = [request.content_type.partition("/")[2] for request in server.requests]
    assert kinds == ["apply-patch+yaml", "json-patch+json", "json-patch+json", "apply-patch+yaml"]
    assert server.requests[1].body[0]["value"] == desired["spec"]["ports"]


async def test_an_apply_that_is_refused_for_itself_is_an_error(
    server: Server, applier: Applier
) -> None:
    desired, live = pair("Service")
    live["spec"]["ports"][0]["port"] = 81
    server.refusals, server.cause = 1, "FieldValueInvalid"
    with pytest.raises(ApiError, match="422"):
        await applier.apply(desired, live)
    assert len(server.requests) == 1


async def test_what_is_not_as_planned_may_be_what_replaces_what_goes(
    server: Server, applier: Applier
) -> None:
    leftovers = (Reference(CONFIG_MAP, "default", "old"), Reference(SERVICE, "default", "old"))
    plan = Plan(apply=(pair("Service")[0], pair("ConfigMap")[0]), prune=leftovers)
    server.refusals, server.answer = 1, OBJECTS["ConfigMap"]["live"]
    (refused,) = (await applier.carry_out(plan, [])).refused
    assert isinstance(refused.error, ApiError)
    assert (refused.of, refused.error.status) == (identity(plan.apply[0]), 422)
    assert [request.method for request in server.requests] == ["PATCH", "PATCH", "DELETE"]
    assert "/configmaps/" in server.requests[-1].path, "the other Service stays"


@pytest.mark.parametrize("refusals", [1, 2])
async def test_replicas_of_a_pool_always_have_an_owner(
    server: Server, applier: Applier, refusals: int
) -> None:
    """Without one they fall back to 1: who takes them over goes first, who lets go waits."""
    pool, number = copy.deepcopy(pair("Service")[0]), {"kind": "EnginePool"}
    pool |= {"apiVersion": "serving.sluice.dev/v1alpha1", **number}
    plan = Plan(apply=(pool,), take_over=(pool,) if refusals == 1 else (), let_go=(pool,))
    server.refusals = refusals
    outcome = await applier.carry_out(plan, [])
    assert outcome.unwritten == {identity(pool)}
    assert len(server.requests) == 1


async def test_fewer_pods_wait_for_what_replaces_them(server: Server, applier: Applier) -> None:
    wanted, (former, live) = copy.deepcopy(pair("Deployment")[0]), pair("Deployment")
    wanted["metadata"]["name"] = "wanted"
    former["spec"]["replicas"] = live["spec"]["replicas"] - 1
    server.refusals = 1
    outcome = await applier.carry_out(Plan(apply=(wanted, former)), [live])
    assert outcome.unwritten == {identity(wanted), identity(former)}
    assert len(server.requests) == 1
