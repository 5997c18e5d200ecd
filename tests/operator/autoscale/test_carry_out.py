"""What is written of a decision, in which order, and what when that fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_contract.cluster.labels import Role
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.autoscale.carry_out import VICTIMS_MANAGER, PoolScaler, Victims
from sluice_operator.autoscale.mover import Mover
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.scaled import DELETION_COST, PoolPods

from tests.operator.autoscale.world import BOTH, scaled_service
from tests.operator.virtual_time import FakeClock


@dataclass
class Server:
    """Accepts every apply but those whose path ends in `refuses`."""

    refuses: str = "-"
    requests: list[Request] = field(default_factory=list)

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        if request.path.endswith(self.refuses):
            return Response(422, {"reason": "Invalid", "message": "no"})
        return Response(200, request.body | {"metadata": request.body["metadata"] | GENERATION})

    def scaler(self) -> PoolScaler:
        client = ApiClient(self, lambda verb, plural: None)
        return PoolScaler(client, Victims(client), Mover(client, FakeClock()))


GENERATION = {"generation": 7}


def decision(*pools: PoolDecision) -> Decision:
    return Decision({pool.role: pool for pool in pools}, "Test", "")


ENGINES = frozenset({"chat-decode-a", "chat-decode-b", "chat-decode-c"})
PODS = {Role.PREFILL: PoolPods(1, 1), Role.DECODE: PoolPods(4, 1, names=ENGINES)}
GROWS = PoolDecision(Role.PREFILL, 1, 3, "QueuedWork", "")
SHRINKS = PoolDecision(Role.DECODE, 4, 2, "Idle", "", ("chat-decode-b", "chat-decode-a"))


async def test_a_pool_shrinks_before_another_grows_and_its_victims_are_named_first() -> None:
    server = Server()
    outcome = await server.scaler()(scaled_service(roles=BOTH), PODS, decision(GROWS, SHRINKS))
    assert [(each.role, each.replicas, each.generation) for each in outcome.written] == [
        (Role.DECODE, 2, 7),
        (Role.PREFILL, 3, 7),
    ]
    paths = [request.path.rpartition("/")[2] for request in server.requests]
    assert paths == ["chat-decode-a", "chat-decode-b", "chat-decode", "chat-prefill"]
    managers = [request.query["fieldManager"] for request in server.requests]
    assert managers == [VICTIMS_MANAGER, VICTIMS_MANAGER, REPLICAS_MANAGER, REPLICAS_MANAGER]
    pool = server.requests[-1].body
    assert (pool["metadata"]["uid"], pool["spec"]) == ("uid-prefill", {"replicas": 3})


async def test_what_does_not_change_is_not_written() -> None:
    server = Server()
    stays = PoolDecision(Role.PREFILL, 2, 2, "Enough", "")
    outcome = await server.scaler()(scaled_service(roles=BOTH), PODS, decision(stays))
    assert (outcome.written, outcome.failed, server.requests) == ((), None, [])


async def test_a_refused_write_leaves_the_rest_for_the_next_tick() -> None:
    server = Server(refuses="chat-decode")
    outcome = await server.scaler()(scaled_service(roles=BOTH), PODS, decision(GROWS, SHRINKS))
    assert outcome.written == ()
    assert "chat-decode" in str(outcome.failed)


async def test_a_victim_that_has_gone_stops_nothing_and_one_that_stayed_is_none_any_more() -> None:
    server = Server(refuses="chat-decode-b")
    scaler, scaled = server.scaler(), scaled_service(roles=BOTH)
    outcome = await scaler(scaled, PODS, decision(SHRINKS))
    assert [each.role for each in outcome.written] == [Role.DECODE]
    server.requests.clear()
    await scaler(scaled, PODS, decision(PoolDecision(Role.DECODE, 2, 3, "QueuedWork", "")))
    freed = {r.path.rpartition("/")[2]: r.body["metadata"] for r in server.requests[:2]}
    assert freed.keys() == {"chat-decode-a", "chat-decode-b"}
    assert all(DELETION_COST not in str(metadata) for metadata in freed.values())


async def test_pods_of_others_are_not_marked_whatever_a_router_says() -> None:
    server = Server()
    foreign = PoolDecision(Role.DECODE, 4, 2, "Idle", "", ("chat-decode-a", "bank-0"))
    await server.scaler()(scaled_service(roles=BOTH), PODS, decision(foreign))
    paths = [request.path.rpartition("/")[2] for request in server.requests]
    assert paths == ["chat-decode-a", "chat-decode"]


async def test_marks_of_an_operator_before_are_taken_back() -> None:
    server, marked = Server(), frozenset({"chat-decode-b", "chat-decode-c"})
    pods = PODS | {Role.DECODE: PoolPods(4, 1, names=ENGINES, victims=marked)}
    await server.scaler()(scaled_service(roles=BOTH), pods, decision(SHRINKS))
    marks = {r.path.rpartition("/")[2]: DELETION_COST in str(r.body) for r in server.requests[:-1]}
    assert marks == {"chat-decode-c": False, "chat-decode-a": True, "chat-decode-b": True}
