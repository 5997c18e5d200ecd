"""Prompts that are scored are computed whole and apart from answers; some want no answer at all."""

from __future__ import annotations

import pytest
from sluice_runtime.scheduler.batch import ForwardMode

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def scored_tokens(bench: Bench, request_id: str) -> list[list[int]]:
    """The tokens whose scores were told, by delta."""
    told = [d.prompt_logprobs for d in bench.deltas if d.request_id == request_id]
    return [[score.token_id for score in scores] for scores in told if scores is not None]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prompt", [5, 40])
def test_a_request_for_no_tokens_is_prefilled_and_ends(prompt: int, overlap: bool) -> None:
    bench = Bench(settings_of(), overlap=overlap)
    bench.add(request("a", prompt, 0, prompt_logprobs=0))
    batches = bench.run()
    assert {batch.mode for batch in batches} == {ForwardMode.EXTEND}
    (end,) = bench.terminals["a"]
    assert (end.finish_reason, end.token_ids) == ("length", ())
    assert end.queue_seconds is not None
    assert scored_tokens(bench, "a") == [list(range(1, prompt))]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("context", "pool_tokens"), [(64, 64), (64, 256), (10_000, 64)])
def test_a_prompt_of_all_the_context_is_scored(
    context: int, pool_tokens: int, overlap: bool
) -> None:
    bench = Bench(settings_of(pool_tokens, context=context), overlap=overlap)
    bench.add(request("a", 64, 0, prompt_logprobs=0), request("beside", 4, 2))
    bench.add(request("answered", 64, 1), request("long", 65, 0))
    bench.run()
    assert [end.finish_reason for end in bench.terminals["a"]] == ["length"]
    assert scored_tokens(bench, "a") == [list(range(1, 64))]
    assert bench.answers["beside"] == answer_to(range(4), 2)
    for name in ("answered", "long"):
        assert [end.finish_reason for end in bench.terminals[name]] == ["error"]


@pytest.mark.parametrize("overlap", [False, True])
def test_scored_prompts_share_no_step_with_answers(overlap: bool) -> None:
    bench = Bench(settings_of(), overlap=overlap)
    bench.add(request("a", 5, 30))
    bench.step()
    bench.add(request("scored", 40, 2, prompt_logprobs=0), request("beside", 4, 2))
    batches = bench.run()
    apart = [b for b in batches if b.extend_rows and not b.decode_rows]
    assert len(apart) >= 3
    assert scored_tokens(bench, "scored") == [list(range(1, 40))]
    assert bench.answers["a"] == answer_to(range(5), 30)
    assert bench.answers["scored"] == answer_to(range(40), 2)


def test_scores_are_told_once_also_when_the_request_is_retracted() -> None:
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.1))
    bench.add(*(request(name, 12, 30, prompt_logprobs=0) for name in "abc"))
    bench.run()
    assert bench.scheduler.status().retractions > 0
    for name in "abc":
        assert scored_tokens(bench, name) == [list(range(1, 12))]
        assert bench.answers[name] == answer_to(range(12), 30)


def test_a_scored_prompt_is_computed_anew_though_it_is_cached_and_serves_others() -> None:
    bench = Bench(settings_of(prefix_cache=True))
    bench.add(request("a", 40, 2))
    bench.run()
    bench.add(request("scored", 44, 2, prompt_logprobs=0))
    bench.run()
    bench.add(request("b", 44, 2))
    bench.run()
    assert bench.cached == {"a": 0, "scored": 0, "b": 40}
    assert scored_tokens(bench, "scored") == [list(range(1, 44))]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("mixed", "prompts_in_a_row"), [(True, 1), (False, 8)])
def test_answers_get_their_turn_however_many_prompts_exclude_them(
    mixed: bool, prompts_in_a_row: int, overlap: bool
) -> None:
    """Scored prompts that want no answer never stop coming, and one of them takes many steps."""
    bench = Bench(settings_of(pool_tokens=4096, mixed=mixed), overlap=overlap)
    bench.add(request("stream", 8, 50))
    bench.step_until(lambda batch: batch.decode_rows)
    waited, longest, number = 0, 0, 0
    while "stream" not in bench.terminals:
        if not bench.scheduler.status().queued_requests:
            number += 1
            length = 200 if number % 3 == 0 else 12
            bench.add(request(f"s{number}", [number % 50] * length, 1, prompt_logprobs=0))
        batch = bench.step()
        assert batch
        waited = 0 if batch.decode_rows else waited + 1
        longest = max(longest, waited)
    assert longest == prompts_in_a_row
    assert number >= 10


def test_a_query_whether_rows_decode_beside_prompts_changes_nothing() -> None:
    bench = Bench(settings_of(mixed=False))
    bench.add(request("stream", 4, 30))
    bench.step_until(lambda batch: batch.decode_rows)
    bench.add(request("next", 4, 2))
    planner = bench.scheduler._planner
    for _ in range(20):
        plan = planner.plan(0.0, (), admits=True)
        assert not planner.mix_decode(plan)
    batch = bench.step()
    assert batch is not None
    assert batch.mode is ForwardMode.EXTEND, "decode rows have waited for no step"
