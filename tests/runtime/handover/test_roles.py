"""Prompts handed over between two engines' loops: the answers, and what becomes of the pages."""

from __future__ import annotations

import logging

import msgspec
import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import HandoverQueues
from sluice_runtime.handover.messages import (
    Attested,
    Bootstrap,
    Chunk,
    Failed,
    Finished,
    Received,
)
from sluice_runtime.handover.ports import RoomLost
from sluice_runtime.handover.rooms import HandoverLimits
from sluice_runtime.wire.messages import Drain, Generate, Sampling, TakeRole, TokenLogprob

from tests.runtime.handover.pair import Engine, Pair, ask
from tests.runtime.scheduler.fake_runner import answer_to


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17, 70])
def test_a_prompt_is_computed_there_and_decoded_here(length: int, overlap: bool) -> None:
    pair = Pair(overlap=overlap)
    pair.ask(ask("a", length, 6))
    pair.turns(20)
    assert pair.decode.link.answer("a") == answer_to(range(length), 6)
    assert pair.end("a").finish_reason == "length"
    assert pair.decode.scheduler.status().steps["EXTEND"] == 0
    assert pair.decode.scheduler.status().steps["MIXED"] == 0
    assert pair.prefill.scheduler.status().steps["DECODE"] == 0
    pair.check_empty()
    kinds = [type(message) for message in pair.wire.said]
    chunks = -(-length // 16)
    assert kinds == [Bootstrap, *[Chunk] * chunks, Finished, Received, Attested]


def test_both_engines_log_the_trace_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.handover")
    pair = Pair()
    done, left = (f"00-{digit * 32}-{'1' * 16}-01" for digit in "ab")
    pair.ask(ask("a", 5, 3, traceparent=done), ask("b", 64, 3, traceparent=left))
    pair.turns(2)
    pair.abort("b")
    pair.turns(15)
    bootstraps = [message for message in pair.wire.said if isinstance(message, Bootstrap)]
    assert [message.request.traceparent for message in bootstraps] == [done, left]
    texts = caplog.messages
    assert f"hand-over of a#0 trace={'a' * 32} done: 5 tokens" in texts
    assert any(t.startswith(f"hand-over of a trace={'a' * 32} done: 5 tokens from") for t in texts)
    cancelled = f"hand-over of b#1 trace={'b' * 32} cancelled: the request was aborted"
    assert cancelled in texts


def test_pages_are_read_while_the_rest_is_computed() -> None:
    pair = Pair()
    pair.ask(ask("a", 64, 2))
    pair.turns(3)
    assert pair.pages.results >= 1
    assert not any(isinstance(message, Finished) for message in pair.wire.said)


def test_the_time_in_a_queue_is_that_before_the_first_step_here_or_there() -> None:
    """Neither the prefill nor the transfer: `b` is computed behind `a`, `c` gets no pages."""
    pair = Pair(pool_tokens=160)
    pair.ask(ask("a", 70, 2), ask("b", 70, 2), ask("c", 70, 2))
    for _ in range(60):
        pair.now += 1.0
        pair.turns()
    waited = [pair.deltas(name)[0].queue_seconds for name in "abc"]
    first, second, third = (seconds for seconds in waited if seconds is not None)
    chunks = -(-70 // 16)
    assert first <= 2, "its prompt takes longer"
    assert chunks <= second <= chunks + 2
    assert third >= 2 * chunks
    pair.check_empty()


@pytest.mark.parametrize("overlap", [False, True])
def test_what_decode_has_cached_is_neither_announced_nor_written(overlap: bool) -> None:
    pair = Pair(overlap=overlap, prefix_cache=True)
    prompt = list(range(30))
    pair.ask(ask("a", prompt, 3))
    pair.turns(15)
    before = len(pair.wire.said)
    copied = pair.pages.copied
    pair.ask(ask("b", [*prompt, 7, 7, 7], 3))
    pair.turns(15)
    asked, chunk, finished, *_ = pair.wire.said[before:]
    assert isinstance(asked, Bootstrap)
    assert isinstance(chunk, Chunk)
    assert isinstance(finished, Finished)
    assert asked.held_tokens == 28
    assert (chunk.start, chunk.end, len(chunk.page_ids)) == (28, 33, 2)
    assert pair.pages.copied == copied + 2
    assert finished.cached_tokens == 28
    assert pair.deltas("b")[0].cached_tokens == 28
    assert pair.decode.link.answer("b") == answer_to([*prompt, 7, 7, 7], 3)
    pair.check_empty()


def test_requests_wait_for_pages_here_and_there() -> None:
    pair = Pair(pool_tokens=64)
    prompts = {f"r{number}": [number] * 30 for number in range(9)}
    pair.ask(*(ask(name, prompt, 5) for name, prompt in prompts.items()))
    pair.turns(120)
    for name, prompt in prompts.items():
        assert pair.decode.link.answer(name) == answer_to(prompt, 5)
    pair.check_empty()


def test_what_is_retracted_is_computed_here_and_counted() -> None:
    pair = Pair(pool_tokens=1400, limits=HandoverLimits(total_seconds=1e9))
    pair.ask(ask("a", 8, 790))
    pair.turns(3)
    pair.ask(ask("b", 8, 800))
    pair.turns(1500)
    assert pair.decode.link.answer("a") == answer_to(range(8), 790)
    assert pair.decode.link.answer("b") == answer_to(range(8), 800)
    status = pair.decode.scheduler.status()
    assert status.retractions >= 1
    load = pair.decode.link.steps[-1].load.handover
    assert load is not None
    assert load.recomputed == status.retractions
    pair.check_empty()


def test_the_queues_and_reads_are_in_the_load() -> None:
    pair = Pair(pool_tokens=64)
    pair.pages.held = True
    pair.ask(ask("a", 50, 2), ask("b", 50, 2))
    pair.turns(12)
    decode, prefill = pair.decode_role, pair.prefill_role
    both = {"prealloc": 1, "transfer": 1}
    assert decode.queues(pair.decode.scheduler.status()) == HandoverQueues(**both)
    assert prefill.queues(pair.prefill.scheduler.status()) == HandoverQueues(inflight=1)
    pair.pages.held = False
    pair.turns(30)
    assert decode.queues(pair.decode.scheduler.status()) == HandoverQueues()
    load = decode.load(pair.decode.scheduler.status())
    assert load.read_seconds == 0.5
    assert load.read_bytes > 0
    assert load.failures == {}


def test_every_request_of_the_hand_over_is_queued_or_running_but_those_held_for_the_reader() -> (
    None
):
    """What the router counts on: no request counts twice, and none is missed."""
    pair = Pair(pool_tokens=64)
    pair.ask(*(ask(f"r{number}", 50, 2) for number in range(4)))
    seen = 0
    for _ in range(60):
        pair.turns(1)
        status = pair.decode.scheduler.status()
        queues = pair.decode_role.queues(status)
        assert queues.prealloc <= status.queued_requests
        assert queues.transfer <= status.running_requests
        status = pair.prefill.scheduler.status()
        queues = pair.prefill_role.queues(status)
        assert queues.bootstrap == status.queued_requests + status.running_requests
        seen += queues.bootstrap
    assert seen > 0
    pair.check_empty()


def test_scores_of_the_prompt_and_the_first_token_come_from_there() -> None:
    pair = Pair(prefix_cache=True)
    pair.ask(ask("a", 20, 3))
    pair.turns(12)
    pair.ask(ask("b", 20, 3, prompt_logprobs=0))
    pair.turns(12)
    (scored,) = [delta for delta in pair.deltas("b") if delta.prompt_logprobs]
    assert [score.token_id for score in scored.prompt_logprobs or ()] == list(range(1, 20))
    assert scored == pair.deltas("b")[0]
    assert isinstance(scored.prompt_logprobs, list)
    assert isinstance(scored.prompt_logprobs[0], TokenLogprob)
    pair.check_empty()


def test_a_first_token_may_be_the_last_one() -> None:
    pair = Pair()
    stop = answer_to(range(9), 1)[0]
    pair.ask(ask("length", 9, 1), ask("stop", 9, 5, stop_token_ids=[stop]), ask("none", 9, 0))
    pair.turns(12)
    assert pair.end("length").finish_reason == "length"
    assert pair.end("stop").finish_reason == "stop"
    assert pair.end("stop").token_ids == (stop,)
    assert (pair.end("none").finish_reason, pair.end("none").token_ids) == ("length", ())
    pair.check_empty()


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_an_engine_of_one_role_serves_the_health_probe_and_nothing_else(side: str) -> None:
    pair = Pair()
    engine = pair.prefill if side == "prefill" else pair.decode
    probe = Generate("probe", [0], 1, Sampling(temperature=0.0), priority=-100)
    engine.link.coming.append([probe, ask("a", 5, 5, prefill=None)])
    pair.turns(5)
    assert engine.link.ends("probe") == [("length", None)]
    ((reason, error),) = engine.link.ends("a")
    assert reason == "error"
    assert "router" in (error or "")
    pair.check_empty()


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    pair = Pair(pool_tokens=64)
    pair.ask(ask("a", 100, 5))
    pair.turns(5)
    assert "64 tokens" in (pair.end("a").error or "")
    assert pair.wire.said == []
    pair.check_empty()


def test_a_probe_that_waits_holds_back_no_prompt() -> None:
    pair = Pair()
    probe = ask("probe", 1, 1, prefill=None)
    pair.ask(probe, ask("a", 40, 3))
    pair.decode.loop.step()
    assert [message.request.request_id for message in pair.wire.said] == ["a"]  # type: ignore[attr-defined]
    pair.turns(15)
    assert pair.decode.link.answer("a") == answer_to(range(40), 3)
    assert pair.end("probe").finish_reason == "length"
    pair.check_empty()


def test_a_draining_prefill_engine_finishes_its_rooms_and_soon_opens_none() -> None:
    pair = Pair()
    pair.ask(ask("a", 40, 3))
    pair.turns(2)
    pair.prefill.link.coming.append([Drain()])
    pair.turns(1)
    pair.ask(ask("in time", 40, 3))
    pair.turns(1)
    load = pair.prefill_role.load(pair.prefill.scheduler.status())
    assert not load.draining
    assert pair.prefill.loop.busy
    pair.now += 3.0
    pair.ask(ask("late", 40, 3))
    pair.turns(15)
    assert pair.decode.link.answer("a") == answer_to(range(40), 3)
    assert pair.decode.link.answer("in time") == answer_to(range(40), 3)
    assert pair.end("late").refusal == "prefill_unavailable"
    assert "draining" in (pair.end("late").error or "")
    assert "prefill-0" in (pair.end("late").error or "")
    pair.check_empty()
    status = pair.prefill.scheduler.status()
    assert pair.prefill_role.load(status).draining
    assert pair.prefill_role.queues(status) == HandoverQueues()


def test_a_fault_of_the_request_is_passed_on_so_are_a_full_queue_and_an_engine_that_leaves() -> (
    None
):
    pair = Pair()
    refusals = iter(["invalid", "overloaded", "unavailable"])

    def refuse(message: object) -> list[object]:
        if isinstance(message, Bootstrap):
            pair.wire.to_decode(Failed(message.room, "because", next(refusals)))  # type: ignore[arg-type]
            return []
        return [message]

    pair.wire.meddle = refuse
    pair.ask(ask("a", 5, 5), ask("b", 5, 5), ask("c", 5, 5))
    pair.turns(4)
    said = [(pair.end(name).refusal, pair.end(name).error) for name in "abc"]
    named = "prefill engine prefill-0: because"
    assert said == [("invalid", "because"), ("overloaded", named), ("prefill_unavailable", named)]
    pair.check_empty()


def test_a_prefill_engine_that_never_got_the_request_is_unavailable_and_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair()
    pair.ask(ask("a", 40, 3), ask("b", 40, 3))
    pair.decode.loop.step()
    pair.now = 3.5
    pair.wire._to_decode += [RoomLost(1, "gone", unasked=True), RoomLost(2, "cut")]
    pair.turns(3)
    assert [pair.end(name).refusal for name in "ab"] == ["prefill_unavailable", "prefill_failed"]
    assert "hand-over of a failed 3.500 s after arrival: gone" in caplog.messages
    pair.check_empty()


def test_a_room_that_is_open_is_not_opened_again() -> None:
    pair = Pair()
    pair.wire.meddle = lambda m: [m, m] if isinstance(m, Bootstrap) else [m]
    pair.ask(ask("a", 40, 3))
    pair.turns(15)
    assert "duplicate room" in (pair.end("a").error or "")
    pair.check_empty()


def test_one_tenant_leaves_a_quarter_of_a_prefill_queue_to_others() -> None:
    pair = Pair(max_running_requests=2, max_queued_requests=4)

    def as_from_many_engines(message: object) -> list[object]:
        if not isinstance(message, Bootstrap):
            return [message]
        return [msgspec.structs.replace(message, room=message.room + 100 * n) for n in range(6)]

    pair.wire.meddle = as_from_many_engines
    pair.ask(msgspec.structs.replace(ask("bob", 40, 3), tenant="bob"))
    pair.turns(2)
    pair.wire.meddle = lambda message: [message]
    pair.ask(msgspec.structs.replace(ask("alice", 40, 3), tenant="alice"))
    pair.turns(20)
    refused = [message for message in pair.wire.said if isinstance(message, Failed)]
    assert [message.room for message in refused] == [501]
    assert "the queue is full for one tenant: 5 of its requests" in refused[0].error
    assert pair.end("alice").error is None


def role_after(pair: Pair, engine: Engine) -> Role | None:
    """The role that it takes, once it has left its present one."""
    turns = iter(range(200))

    def stopping() -> bool:
        pair.turns()
        return next(turns, None) is None

    return engine.loop.run(stopping)


def test_a_prefill_engine_that_takes_another_role_leaves_once_its_rooms_are_read() -> None:
    pair = Pair()
    pair.ask(ask("a", 40, 3))
    pair.turns(2)
    pair.prefill.link.coming.append([TakeRole(Role.DECODE, lame_duck_seconds=1, drain_seconds=60)])
    pair.turns(1)
    pair.now += 1.0
    pair.ask(ask("late", 40, 3))
    assert pair.prefill.loop.busy
    assert role_after(pair, pair.prefill) is Role.DECODE
    pair.turns(15)
    assert pair.decode.link.answer("a") == answer_to(range(40), 3)
    assert pair.end("late").refusal == "prefill_unavailable"
    pair.check_empty()


def test_rooms_that_take_too_long_are_given_up_and_another_engine_may_serve_them() -> None:
    pair = Pair()
    pair.ask(ask("a", 200, 3))
    pair.turns(2)
    pair.prefill.link.coming.append([TakeRole(Role.DECODE, lame_duck_seconds=1, drain_seconds=0)])
    pair.turns(1)
    pair.now += 1.0
    assert role_after(pair, pair.prefill) is Role.DECODE
    pair.turns(2)
    assert pair.end("a").refusal == "prefill_unavailable"
    assert "takes another role" in (pair.end("a").error or "")
    assert pair.prefill_role.load(pair.prefill.scheduler.status()).failures == {"RoleChanged": 1}
    pair.check_empty()


def test_a_decode_engine_leaves_once_its_answers_have_ended_and_refuses_others() -> None:
    pair = Pair()
    pair.ask(ask("a", 40, 30))
    pair.turns(3)
    pair.decode.link.coming.append([TakeRole(Role.PREFILL, lame_duck_seconds=1, drain_seconds=60)])
    pair.turns(1)
    pair.ask(ask("in time", 40, 3))
    pair.turns(1)
    pair.now += 1.0
    pair.ask(ask("late", 40, 3))
    assert role_after(pair, pair.decode) is Role.PREFILL
    assert pair.decode.link.answer("a") == answer_to(range(40), 30)
    assert pair.decode.link.answer("in time") == answer_to(range(40), 3)
    assert pair.end("late").refusal == "unavailable"
    pair.check_empty()
