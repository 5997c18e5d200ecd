"""A canary ends in the same way when the operator is killed after any of its writes, when statuses
are emptied, and when routers are renewed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from sluice_contract.cluster.labels import REVISION
from sluice_operator.cli.rollout.canary import next_step, no_requests
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
)
from sluice_operator.service.revisions.revision import STATE

from tests.operator.cli.rollout.person import Watched
from tests.operator.harness.memory_cluster import running
from tests.operator.service.rollout.canary_world import counts, look

pytestmark = pytest.mark.process

ENGINES = 4
ROLLOUT = {"canary": {"steps": [10, 25], "minutes": 2}}
"""Neither step has as many new engines as there are former ones."""
KEYS = 2_000
"""Keys that each router counts in a minute for a new revision."""
VERDICTS = ("CanarySame", "CanaryWorse", "CanaryAborted")


class KilledError(BaseException):
    """The operator is killed."""


class End(NamedTuple):
    """What a canary leaves."""

    engines: dict[str, int]
    label: str | None
    state: tuple[Any, ...]
    conditions: list[tuple[str, str, str]]


class Interrupted(Watched):
    """A canary to which something happens, with two routers."""

    def __init__(self, cluster: Any, killed_after: Callable[[int], bool]) -> None:
        """`killed_after`: whether the operator is killed after a write of this number."""
        super().__init__(cluster)
        (self.former,) = self.engines
        self.minutes_of = {"r1": 0, "r2": 0}
        """Minutes that each router has counted, by its epoch."""
        self.happens: Callable[[Interrupted], None] = lambda watched: None
        """What happens before each look."""
        self.writes, self.killed_after = 0, killed_after
        self._send, self._reconciled = cluster.api.send, cluster.reconciled
        cluster.reconciled = self.reconciled

    async def reconciled(self) -> None:
        """Another operator goes on where one was killed; it has asked no router yet."""
        looks = self.cluster.looks
        shares, answers = looks.shares, looks.answers
        self.cluster.api.send = self.counted  # type: ignore[method-assign]
        is_over = False
        while not is_over:
            try:
                await self._reconciled()
                is_over = looks.shares != shares or looks.answers == answers
                looks.answers = () if looks.shares != shares else answers
            except KilledError:
                looks.shares, looks.answers = {}, ()
                self.cluster.operator_starts()
        self.cluster.api.send = self._send  # type: ignore[method-assign]

    async def counted(self, request: Request) -> Response:
        """Carries a request out; the operator may not live to see the answer."""
        response: Response = await self._send(request)
        if request.method == "GET" or "dryRun" in request.query:
            return response
        self.writes += 1
        self.has_its_engines()
        if self.killed_after(self.writes):
            raise KilledError
        return response

    def has_its_engines(self) -> None:
        """As many are usable as before, of one revision, and the state can be read."""
        usable = set[str]()
        for (kind, name), item in self.cluster.api.objects.items():
            if kind is DEPLOYMENT and "-mixed-" in name:
                ready = item.get("status", {}).get("readyReplicas", 0)
                if min(item["spec"]["replicas"], ready) >= ENGINES:
                    usable.add(item["metadata"]["labels"][REVISION])
            if kind is CONTROLLER_REVISION:
                assert json.loads(item["metadata"]["annotations"][STATE])["number"]
        assert self.former in usable or (usable and self.state.verdict == "promoted")

    async def minute(self, bad_share: float) -> None:
        """Routers count, of the new revision a share of bad keys, and the operator looks."""
        self.happens(self)
        percent = int((self.label or "").rpartition(".")[2] or 0)
        names = {"revision": self.new, "former": self.former, "percent": percent}
        self.minutes_of = {epoch: count + 1 for epoch, count in self.minutes_of.items()}
        answers = [
            counts((KEYS * n, int(KEYS * n * bad_share)), (3 * KEYS * n, 3 * n), epoch, **names)
            for epoch, n in self.minutes_of.items()
        ]
        self.minutes += 1
        self.cluster.looks.answers = (look(self.minutes, *answers),)
        await self.cluster.reconciled()

    @property
    def end(self) -> End:
        state = self.state
        progress = (state.step, state.verdict, state.decision, state.reached)
        conditions = [
            (c["type"], c["status"], c["reason"]) for c in self.cluster.status["conditions"]
        ]
        return End(self.engines, self.label, progress, conditions)

    @property
    def verdict_notes(self) -> list[str]:
        """Notes of events about verdicts. An API server has each name once."""
        events = {event["metadata"]["name"]: event for event in self.cluster.api.events}
        return [each["note"] for each in events.values() if each["reason"] in VERDICTS]

    @property
    def verdicts(self) -> Counter[str]:
        """Notes without their numbers: an operator that starts may count a minute less."""
        return Counter(note.partition(":")[0] for note in self.verdict_notes)


async def equal(watched: Interrupted) -> None:
    for _ in range(10):
        if watched.label:
            await watched.minute(0.001)
    assert watched.state.verdict == "promoted"


async def worse(watched: Interrupted) -> None:
    for _ in range(4):
        await watched.minute(0.05)
    assert watched.state.verdict == "worse"


async def decided(watched: Interrupted) -> None:
    await watched.minute(0.001)
    await watched.decides(next_step)
    await watched.minute(0.001)
    await watched.decides(no_requests)
    assert watched.state.verdict == "aborted"


def statuses_are_emptied(watched: Interrupted) -> None:
    for place in ((INFERENCE_SERVICE, "chat"), (ENGINE_POOL, "chat-mixed")):
        watched.cluster.api.objects[place]["status"] = {}


def a_router_is_renewed(watched: Interrupted) -> None:
    if watched.minutes == 1:
        watched.minutes_of = {"r1": watched.minutes_of["r1"], "r3": 0}


def all_routers_are_renewed(watched: Interrupted) -> None:
    if watched.minutes == 1:
        watched.minutes_of = {"r3": 0, "r4": 0}


Run = Callable[[Interrupted], Awaitable[None]]
RUNS = pytest.mark.parametrize("run", [equal, worse, decided])


async def interrupted(
    run: Run,
    killed_after: Callable[[int], bool] = lambda write: False,
    happens: Callable[[Interrupted], None] = lambda watched: None,
) -> Interrupted:
    """A canary at its end."""
    watched = Interrupted(await running(replicas=ENGINES, rollout=ROLLOUT), killed_after)
    watched.happens = happens
    await watched.cluster.edited(engine={"chunkSize": 64})
    await run(watched)
    return watched


@RUNS
async def test_operators_that_are_killed_after_their_first_write_get_to_the_same_end(
    run: Run,
) -> None:
    expected, killed = await interrupted(run), await interrupted(run, killed_after=bool)
    assert killed.end == expected.end
    assert killed.verdicts <= expected.verdicts, "no event twice"


@pytest.mark.full
@RUNS
async def test_an_operator_that_is_killed_loses_one_event_at_most(run: Run) -> None:
    expected = await interrupted(run)
    for write in range(1, expected.writes + 1):
        killed = await interrupted(run, killed_after=write.__eq__)
        assert killed.end == expected.end, write
        lost = (expected.verdicts - killed.verdicts).total()
        assert killed.verdicts <= expected.verdicts, write
        assert lost <= 1, write


@RUNS
@pytest.mark.parametrize(
    "happens", [statuses_are_emptied, a_router_is_renewed, all_routers_are_renewed]
)
async def test_a_canary_ends_the_same_whatever_is_lost_meanwhile(
    run: Run, happens: Callable[[Interrupted], None]
) -> None:
    expected, other = await interrupted(run), await interrupted(run, happens=happens)
    assert other.end == expected.end
    assert other.verdict_notes == expected.verdict_notes
