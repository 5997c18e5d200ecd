"""Why a Job has no pod: the API server is asked in a dry run, late and seldom."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.apply.key_secrets import MISSING_SECONDS
from sluice_operator.apply.status import COUNTS_SECONDS
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, POD, Manifest
from sluice_operator.probes.refused_pods import EVERY_SECONDS, REFUSED_SECONDS, RefusedPods

from tests.operator.harness.memory_cluster import KEY, MemoryCluster
from tests.operator.model_pods import ended_pod
from tests.operator.statuses import condition
from tests.operator.virtual_time import FakeClock

QUOTA = 'pods "fetch" is forbidden: failed quota: team: must specify limits.cpu for: fetch-model'
DENIED = 'admission webhook "policy" denied the request: images of the mirror only'
HOOK = 'Internal error occurred: failed calling webhook "policy": connection refused'
NO_RIGHT = 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'
GOING = "pods is forbidden: unable to create new content because it is being terminated"
NO_DRY_RUN = 'admission webhook "policy" does not support dry run'


class Server:
    """Makes pods, or refuses them."""

    def __init__(self) -> None:
        self.answer = Response(201, {})
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        return self.answer

    def refuses(self, status: int = 403, message: str = QUOTA) -> None:
        self.answer = Response(status, {"reason": "Forbidden", "message": message})


class Asked:
    """The probe before a server, on a clock of its own."""

    def __init__(self) -> None:
        self.server, self.clock = Server(), FakeClock()
        self.probe = RefusedPods(ApiClient(self.server, lambda verb, plural: None), self.clock)

    async def after(self, seconds: float, item: Manifest, *pods: Manifest) -> dict[str, str]:
        self.clock.elapsed_seconds += seconds
        return await self.probe.refusals([item], pods)


def job(**spec: Any) -> Manifest:
    metadata = {"labels": {"role": "fetch"}, "annotations": {"a": "b"}, "name": "of-a-template"}
    template = {"metadata": metadata, "spec": {"containers": [{"name": "fetch-model"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "fetch", "namespace": "team", "uid": "u1"},
        "spec": {"template": template, **spec},
    }


async def test_a_job_without_a_pod_is_tried_after_a_while_and_then_seldom() -> None:
    asked = Asked()
    asked.server.refuses()
    assert asked.probe.again_seconds([job()]) is None
    for seconds in (0, REFUSED_SECONDS - 1):
        assert await asked.after(seconds, job()) == {}
    assert (asked.probe.again_seconds([job()]), asked.server.requests) == (1.0, [])
    for seconds in (1, EVERY_SECONDS - 1):
        assert await asked.after(seconds, job()) == {"u1": QUOTA}
    assert asked.probe.again_seconds([job()]) == 1.0
    asked.server.answer = Response(201, {})
    assert await asked.after(1, job()) == {}
    assert len(asked.server.requests) == 2


async def test_what_is_tried_is_the_pod_that_its_controller_would_make() -> None:
    asked = Asked()
    for seconds in (0, REFUSED_SECONDS):
        await asked.after(seconds, job())
    (request,) = asked.server.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/team/pods")
    assert request.query["dryRun"] == "All", "nothing is made"
    assert isinstance(request.body, dict)
    template = job()["spec"]["template"]
    assert request.body["spec"] == template["spec"]
    metadata = request.body["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"role": "fetch"}, {"a": "b"})
    assert metadata["name"] == "fetch", "a refusal names it, and does not change"
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "u1", True)


@pytest.mark.parametrize(
    ("status", "message", "shown"),
    [
        (403, QUOTA, QUOTA),
        (400, DENIED, DENIED),
        (422, "Pod is invalid", "Pod is invalid"),
        (500, HOOK, HOOK),
        (403, NO_RIGHT, ""),
        (403, GOING, ""),
        (400, NO_DRY_RUN, ""),
        (409, "pods already exists", ""),
        (429, "slow down", ""),
        (503, "no leader", ""),
    ],
)
async def test_only_what_keeps_the_controller_from_it_is_a_refusal(
    status: int, message: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked()
    asked.server.refuses(status, message)
    await asked.after(0, job())
    for _ in range(2):
        refusals = await asked.after(EVERY_SECONDS, job())
    assert len(asked.server.requests) == 2
    assert (shown in refusals["u1"]) if shown else refusals == {}
    assert caplog.text.count("why a Job has no pod is not known") == (message == NO_RIGHT), "once"


ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True"}]}
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "False"}]}


@pytest.mark.parametrize(
    ("item", "is_tried"),
    [
        (job(), True),
        (job() | {"status": SUSPENDED}, True),
        (job() | {"status": ENDED}, False),
        (job() | {"status": FAILED}, False),
        (job(suspend=True), False),
        (job() | {"metadata": job()["metadata"] | {"deletionTimestamp": "2026-01-01"}}, False),
    ],
    ids=["new", "resumed", "complete", "failed", "suspended", "deleted"],
)
async def test_a_job_that_makes_no_pods_is_not_tried(item: Manifest, is_tried: bool) -> None:
    asked = Asked()
    for seconds in (0, REFUSED_SECONDS):
        await asked.after(seconds, item)
    assert bool(asked.server.requests) == is_tried


async def test_a_pod_of_the_job_begins_the_wait_anew() -> None:
    asked = Asked()
    asked.server.refuses()
    pod = ended_pod(job(), 1, "")
    other = pod | {"metadata": pod["metadata"] | {"ownerReferences": []}}
    await asked.after(0, job(), other)
    assert await asked.after(REFUSED_SECONDS, job(), other) == {"u1": QUOTA}
    assert await asked.after(1, job(), pod) == {}
    assert asked.probe.again_seconds([job()]) is None
    await asked.after(1, job())
    assert await asked.after(REFUSED_SECONDS - 1, job()) == {}
    assert await asked.after(1, job()) == {"u1": QUOTA}


async def test_a_service_looks_again_by_itself_until_it_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MemoryCluster(model={"uri": "hf://org/name"})
    await cluster.reconciled()
    cluster.api.refuses_pods = QUOTA
    stalled = condition(cluster.status, "Stalled")
    assert (stalled["status"], await cluster.service(KEY)) == ("False", COUNTS_SECONDS)
    cluster.clock.elapsed_seconds += COUNTS_SECONDS
    assert await cluster.service(KEY) == REFUSED_SECONDS - COUNTS_SECONDS
    cluster.clock.elapsed_seconds += REFUSED_SECONDS
    assert await cluster.service(KEY) == EVERY_SECONDS
    stalled = condition(cluster.status, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "PodRefused")
    assert stalled["message"].endswith(f" gets no pod: {QUOTA}")
    written = len(cluster.api.writes)
    cluster.clock.elapsed_seconds += EVERY_SECONDS
    await cluster.service(KEY)
    assert len(cluster.api.writes) == written, "it is said once"
    cluster.api.refuses_pods = ""
    cluster.clock.elapsed_seconds += EVERY_SECONDS
    await cluster.service(KEY)
    assert condition(cluster.status, "Stalled")["status"] == "False"
    assert condition(cluster.status, "ModelAvailable")["reason"] == "ResolvingModel"
    assert [record.message for record in caplog.records].count("PodRefused") == 1


@pytest.mark.parametrize("role", ["router", "mixed"])
async def test_refused_pods_of_a_deployment_need_a_person_after_a_while(role: str) -> None:
    cluster = MemoryCluster()
    await cluster.reconciled()
    (name,) = [name for name in cluster.names(DEPLOYMENT) if f"-{role}" in name]
    since = cluster.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    failing = {
        "type": "ReplicaFailure", "status": "True", "message": QUOTA, "lastTransitionTime": since,
    }  # fmt: skip
    deployment = cluster.api.objects[DEPLOYMENT, name]
    status = {"observedGeneration": deployment["metadata"]["generation"], "conditions": [failing]}
    cluster.api.apply(DEPLOYMENT, {"metadata": {"name": name}, "status": status}, "status")
    for pod in cluster.deployed:
        if pod.startswith(name):
            cluster.api.delete(POD, pod)
    reconcile: Reconcile = cluster.service
    key = KEY
    if role != "router":
        reconcile, key = cluster.pool, Key(ENGINE_POOL.kind, "default", f"chat-{role}")
    waits = MISSING_SECONDS if role == "router" else REFUSED_SECONDS
    assert await reconcile(key) == waits, "for a Secret, at first"
    cluster.clock.elapsed_seconds += REFUSED_SECONDS
    assert await reconcile(key) is None
    await cluster.service(KEY)
    stalled = condition(cluster.status, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ReplicaFailure")
    assert QUOTA in stalled["message"]
