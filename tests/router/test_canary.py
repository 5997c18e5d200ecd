"""Canaries: who gets the new revision, who stays, and what happens while one of them is away."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import pytest
import sluice_router.canary
from hypothesis import assume, given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import (
    CANARY,
    CanaryShare,
    Role,
    canary_share,
)
from sluice_contract.http_heads import ROUTING_KEY_HEADER
from sluice_router import hand_back, pick
from sluice_router.attempts import Call
from sluice_router.byte_budget import Body, ByteBudget
from sluice_router.canary import CanaryKey, Shares, by_side, goes_to_new, in_order, key_of
from sluice_router.discovery import shares_of
from sluice_router.engines import Endpoint, EngineState, Fleet, Phase, ReceivedReport
from sluice_router.hand_back import HandBackCall, HandBacks, Look, Unanswered, UnansweredRequests
from sluice_router.targets import Target, chooser

from tests.examples import examples
from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.fake_kube import FakeKube, Slice, endpoint_slice, running_kube
from tests.router.test_service import service, slice_of

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
SHARES = {MIXED: CanaryShare("new", "former", 25)}
KEYS = [CanaryKey(str(number).encode()) for number in range(4000)]
CHAT = "/v1/chat/completions"


def engine(name: str, revision: str | None = "former", role: Role = MIXED) -> EngineState:
    """An engine of a revision; None: it has not reported yet."""
    state = EngineState(Endpoint(name, f"http://{name}", role, Phase.READY))
    if revision is None:
        return state
    port = 9000 if role is PREFILL else None
    report = fakes.load_report(role=role, revision=revision, bootstrap_port=port)
    return replace(state, received=ReceivedReport(report, 0.0, own_inflight=0), was_asked=True)


def names(engines: Sequence[EngineState]) -> list[str]:
    return [engine.endpoint.name for engine in engines]


def test_a_label_states_a_revision_and_its_percent() -> None:
    assert CanaryShare("1f0e", "ab", 25).label == "1f0e.ab.25"
    assert canary_share("1f0e.ab.25") == CanaryShare("1f0e", "ab", 25)
    for label in ("", "1f0e", "1f0e.25", "1f0e.ab.100", "1f0e.ab.-1", "1f0e.ab.2.5", "1f0e.ab.05"):
        assert canary_share(label) is None, label


@pytest.mark.parametrize("revision", ["new", "1f0e2d3c4b"])
def test_a_quarter_of_the_keys_is_a_quarter(revision: str) -> None:
    shares = {MIXED: CanaryShare(revision, "former", 25)}
    count = sum(goes_to_new(shares, key) for key in KEYS)
    assert abs(count / len(KEYS) - 0.25) < 0.02


@given(
    key=st.builds(CanaryKey, st.binary()),
    percents=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
@examples(100)
def test_a_share_that_grows_keeps_its_keys(key: CanaryKey, percents: tuple[int, int]) -> None:
    less, more = ({MIXED: CanaryShare("new", "former", percent)} for percent in sorted(percents))
    assert goes_to_new(more, key) or not goes_to_new(less, key)
    assert not goes_to_new({MIXED: CanaryShare("new", "former", 0)}, key)


def test_another_revision_begins_with_other_keys() -> None:
    first, second = (
        {key for key in KEYS if goes_to_new({MIXED: CanaryShare(name, "former", 25)}, key)}
        for name in ("first", "second")
    )
    assert abs(len(first & second) / len(KEYS) - 0.0625) < 0.02


def test_of_two_pools_the_smaller_share_counts() -> None:
    both = {PREFILL: CanaryShare("p2", "p1", 50), DECODE: CanaryShare("d2", "d1", 5)}
    share = sum(goes_to_new(both, key) for key in KEYS) / len(KEYS)
    assert abs(share - 0.05) < 0.02


def groups(shares: Shares, engines: Sequence[EngineState], *, new: bool = False) -> list[list[str]]:
    return [names(group) for group in in_order(shares, engines, new_first=new)]


def test_an_engine_before_its_first_report_serves_neither_side() -> None:
    engines = [engine("a"), engine("b", "new"), engine("c", None)]
    assert groups(SHARES, engines) == [["a"], ["b"]]
    assert groups(SHARES, engines, new=True) == [["b"], ["a"]]
    assert groups(SHARES, [engine("c", None)]) == []


def test_an_engine_of_a_third_revision_is_the_last_to_be_asked() -> None:
    engines = [engine("older", "older"), engine("a"), engine("b", "new")]
    assert groups(SHARES, engines) == [["a"], ["b"], ["older"]]
    stable = {MIXED: CanaryShare("former", "former", 0)}
    assert groups(stable, engines) == [["a"], ["a"], ["older", "b"]]


@pytest.mark.parametrize("answers", [True, False])
def test_an_engine_without_a_readable_report_is_the_last_to_be_asked(answers: bool) -> None:
    fleet = Fleet(lambda: 0.0)
    fleet.replace_endpoints([engine(name).endpoint for name in "ab"], SHARES)
    first, second = fleet.engines()
    assert groups(SHARES, fleet.engines()) == []
    (fleet.reached if answers else fleet.timed_out)(first.key)
    assert groups(SHARES, fleet.engines()) == [["a"]]
    fleet.report(second.key, fakes.load_report(revision="former"), own_inflight=0)
    assert groups(SHARES, fleet.engines()) == [["b"], ["a"]]


def test_an_engine_of_a_pool_that_is_not_changed_serves_both_sides() -> None:
    shares = {PREFILL: CanaryShare("p2", "p1", 25), DECODE: CanaryShare("d1", "d1", 25)}
    engines = [engine("p1", "p1", PREFILL), engine("p2", "p2", PREFILL), engine("d", "d1", DECODE)]
    new, former, last = by_side(shares, engines)
    assert (names(new), names(former), last) == (["p2", "d"], ["p1", "d"], [])


def test_a_pool_that_states_no_share_serves_the_former_side_with_its_only_revision() -> None:
    shares = {PREFILL: CanaryShare("p2", "p1", 0)}
    engines = [engine("p1", "p1", PREFILL), engine("p2", "p2", PREFILL), engine("d", "d1", DECODE)]
    assert groups(shares, engines) == [["p1", "d"], ["p2"]]
    assert groups(shares, [*engines, engine("d0", None, DECODE)]) == [["p1", "d"], ["p2"]]
    assert groups(shares, [*engines, engine("d2", "d2", DECODE)]) == [["p1"], ["p2"]]


revisions = st.sampled_from(["new", "former", "older", None])
pools = st.lists(st.tuples(st.sampled_from([PREFILL, DECODE]), revisions), max_size=8)
stating = st.sampled_from([(PREFILL, DECODE), (PREFILL,), (DECODE,)])


@given(pools=pools, stating=stating, new_first=st.booleans(), seed=st.integers(0, 9))
@examples(200)
def test_a_pair_is_never_of_two_revisions(
    pools: list[tuple[Role, str | None]], stating: tuple[Role, ...], new_first: bool, seed: int
) -> None:
    """Also while a pool states no share: the operator then runs the former revision alone in it,
    and other engines there are somebody's fault."""
    for role in {PREFILL, DECODE} - set(stating):
        reported = {name for of, name in pools if of is role} - {None}
        assume(reported not in ({"new"}, {"older"}))
    engines = [engine(str(number), name, role) for number, (role, name) in enumerate(pools)]
    shares = {role: CanaryShare("new", "former", 50) for role in stating}
    choose = chooser([PREFILL, DECODE], 5.0, random.Random(seed))
    for group in in_order(shares, engines, new_first=new_first):
        target = choose(group, 0.0, (), generates=True, affinity=None).target
        if target is not None:
            pair = [each for each in (target.engine, target.prefill) if each]
            assert len({each.received and each.received.report.revision for each in pair}) == 1


def call(body: object = None, tenant: str | None = None, **headers: str) -> Call:
    held = Body(ByteBudget(1 << 20))
    held.content = json.dumps(body).encode() if body is not None else b""
    return Call("POST", CHAT, {"X-Request-Id": "r1"} | headers, held, tenant=tenant)


def turns(*texts: str, system: str = "s" * 2000) -> dict[str, object]:
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"messages": [{"role": "system", "content": system}, *messages]}


def test_the_turns_of_a_chat_have_one_key_and_other_chats_another() -> None:
    first = key_of(call(turns("hello")))
    assert key_of(call(turns("hello", "hi", "and?"), **{"X-Request-Id": "r2"})) == first
    for length in (200_000, 400_000):
        long = "x" * length
        assert key_of(call(turns(long))) == key_of(call(turns(long, "hi", "and?")))
        assert key_of(call(turns(long))) != key_of(call(turns("y" + long)))
    assert key_of(call(turns("hello", system="other"))) != first
    assert key_of(call(turns("hello"), tenant="t")) != first
    assert key_of(call({"input": turns("hello")["messages"]})) == first


def test_of_a_long_chat_only_the_beginning_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[bytes]()
    decode = pick._message.decode

    class Counted:
        def decode(self, message: bytes) -> pick._Message:
            read.append(message)
            return decode(message)

    monkeypatch.setattr(pick, "_message", Counted())
    key_of(call(turns("hello", *["and?"] * 500)))
    assert len(read) == 2, "the system's message, and the user's first one"
    read.clear()
    key_of(call({"messages": [{"role": "system"}] * 500}))
    assert len(read) == pick.MAX_MESSAGES
    read.clear()
    key_of(call(turns("x" * 300_000)))
    assert read == []


def test_completions_have_the_key_of_their_session_or_of_themselves() -> None:
    prompt = {"prompt": "a prefix that many share"}
    assert key_of(call(prompt)) != key_of(call(prompt, **{"X-Request-Id": "r2"}))
    session = {ROUTING_KEY_HEADER: "s"}
    assert [key_of(call(prompt, **of)).recurs for of in ({}, session)] == [False, True]
    assert key_of(call(turns("hello"))).recurs
    assert key_of(call(prompt, **session)) == key_of(call(turns("hello"), **session))
    assert key_of(call(prompt, "t", **session)) != key_of(call(prompt, **session))
    broken: list[object] = [
        {"prompt": "x" * 300_000},
        None,
        [],
        {"messages": 3},
        {"messages": [3]},
        {"messages": [{"role": "system"}]},
    ]
    assert len({key_of(call(body)) for body in broken}) == 1, "the request's id"


def labelled(piece: Slice, label: str) -> Slice:
    piece["metadata"]["labels"][CANARY] = label
    return piece


def test_slices_state_the_share_of_their_pool() -> None:
    one = labelled(endpoint_slice("s1", role="prefill"), "p2.p1.25")
    roles = (PREFILL, DECODE)
    assert shares_of([one], "chat", roles) == {PREFILL: ("p2", "p1", 0)}
    other = labelled(endpoint_slice("s5", role="decode"), "d1.d1.25")
    both = {PREFILL: ("p2", "p1", 25), DECODE: ("d1", "d1", 25)}
    assert shares_of([one, other], "chat", roles) == both
    behind = labelled(endpoint_slice("s2", role="prefill"), "p2.p1.5")
    without = endpoint_slice("s3", role="prefill")
    assert shares_of([one, behind], "chat", [PREFILL]) == {PREFILL: ("p2", "p1", 5)}
    assert shares_of([one, without], "chat", [PREFILL]) == {PREFILL: ("p2", "p1", 0)}
    assert shares_of([without, endpoint_slice("s4")], "chat", roles) == {}


@dataclass
class Canary:
    """A router in front of engines of two revisions, one of the former first."""

    kube: FakeKube
    router: fakes.RunningRouter
    client: aiohttp.ClientSession
    engines: list[fakes.FakeEngine]

    async def ask(self, session: str) -> str:
        """URL of the engine that answers."""
        headers = {ROUTING_KEY_HEADER: session}
        body = json.dumps(turns("hello"))
        async with self.client.post(self.router.url + CHAT, data=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["engine"])

    def expected(self, session: str, percent: int) -> str:
        key = key_of(call(turns("hello"), **{ROUTING_KEY_HEADER: session}))
        return self.engines[goes_to_new({MIXED: CanaryShare("new", "former", percent)}, key)].url

    async def asked_until(self, session: str, url: str) -> None:
        """Asks until this engine answers, which it does once the router has followed a change."""
        for _ in range(int(PATIENCE_SECONDS * 100)):
            if await self.ask(session) == url:
                return
        raise AssertionError(f"{url} never answers")


@asynccontextmanager
async def canary(
    monkeypatch: pytest.MonkeyPatch, percent: int, *new: fakes.Behaviour
) -> AsyncIterator[Canary]:
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(running_kube())
        client = await stack.enter_async_context(aiohttp.ClientSession())
        engines = []
        for number, behave in enumerate((fakes.answers_json, *(new or (fakes.answers_json,)))):
            running = await stack.enter_async_context(fakes.running_engine(behave))
            running.load = fakes.load_report(revision="new" if number else "former")
            name = f"new-{number}" if number else "former"
            kube.slices[name] = labelled(
                slice_of(name, running, ready=True), f"new.former.{percent}"
            )
            engines.append(running)
        router = await stack.enter_async_context(service(kube, monkeypatch))
        yield Canary(kube, router, client, engines)


SESSIONS = [f"session {number}" for number in range(24)]


async def test_each_session_gets_its_revision_and_keeps_it_while_the_share_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with canary(monkeypatch, 25) as running:
        before = {session: await running.ask(session) for session in SESSIONS}
        assert before == {session: running.expected(session, 25) for session in SESSIONS}
        for name, each in zip(("former", "new-1"), running.engines, strict=True):
            running.kube.put(labelled(slice_of(name, each, ready=True), "new.former.75"))
        moved = next(s for s in SESSIONS if before[s] != running.expected(s, 75))
        await running.asked_until(moved, running.engines[1].url)
        for session in SESSIONS:
            now = await running.ask(session)
            assert now == running.expected(session, 75)
            assert now == before[session] or now == running.engines[1].url


@pytest.mark.process
async def test_of_two_thousand_sessions_a_quarter_goes_to_the_new_revision_and_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with canary(monkeypatch, 25) as running:
        sessions = [f"session {number}" for number in range(2000)]
        first, again = [[await running.ask(each) for each in sessions] for _ in range(2)]
        share = first.count(running.engines[1].url) / len(sessions)
        assert abs(share - 0.25) < 0.02
        assert again == first


async def test_a_revision_without_a_usable_engine_gives_its_share_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with canary(monkeypatch, 99) as running:
        session = next(s for s in SESSIONS if running.expected(s, 99) == running.engines[1].url)
        await running.asked_until(session, running.engines[1].url)
        running.kube.put(
            labelled(slice_of("new-1", running.engines[1], ready=False), "new.former.99")
        )
        await running.asked_until(session, running.engines[0].url)
        gone = slice_of("former", running.engines[0], ready=False)
        running.kube.put(labelled(gone, "new.former.0"))
        running.kube.put(
            labelled(slice_of("new-1", running.engines[1], ready=True), "new.former.0")
        )
        await running.asked_until(session, running.engines[1].url)


async def test_without_a_share_no_key_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice_router.canary, "key_of", None)
    async with canary(monkeypatch, 0) as running:
        await running.asked_until("session", running.engines[0].url)


async def test_engines_that_leave_after_an_undo_get_no_request_though_the_others_are_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with canary(monkeypatch, 99) as running:
        session = next(s for s in SESSIONS if running.expected(s, 99) == running.engines[1].url)
        await running.asked_until(session, running.engines[1].url)
        for name, each in zip(("former", "new-1"), running.engines, strict=True):
            running.kube.put(labelled(slice_of(name, each, ready=True), "former.former.0"))
        await running.asked_until(session, running.engines[0].url)
        for session in SESSIONS:
            assert await running.ask(session) == running.engines[0].url


async def test_a_retry_goes_to_the_former_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    async with canary(monkeypatch, 99, fakes.refuses(503), fakes.refuses(503)) as running:
        session = next(s for s in SESSIONS if running.expected(s, 99) == running.engines[1].url)
        assert await running.ask(session) == running.engines[0].url
        assert sum(len(engine.calls) for engine in running.engines[1:]) == 1


async def test_a_waiting_request_is_not_moved_to_the_other_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = list[list[str]]()

    def plan(
        engines: Sequence[EngineState], requests: object, look: Look, not_asked: object
    ) -> list[HandBackCall]:
        planned.append(names(engines))
        return []

    monkeypatch.setattr(hand_back, "plan_hand_backs", plan)
    fleet = Fleet(lambda: 0.0)
    states = [engine("a"), engine("b", "new"), engine("c")]
    fleet.replace_endpoints([state.endpoint for state in states], SHARES)
    for state in states:
        assert state.received is not None
        fleet.report(state.key, state.received.report, own_inflight=0)
    waiting = UnansweredRequests()
    backs = HandBacks(fleet, waiting, None, lambda: 9.0, 5.0, 1.0, lambda: 0.0)  # type: ignore[arg-type]
    with waiting.sent(Unanswered("r", Target(states[0]), 0.0, 0)):
        backs.look()
    assert planned == [["b"], ["a", "c"]]
