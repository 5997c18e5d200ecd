"""Requests whose answer another engine began: they go on as if they had been retracted."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.wire.messages import Generate, Sampling

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to, tokens_of

PROMPT = list(range(9))
WHOLE = answer_to(PROMPT, 12)


def resumed(name: str, generated: int, max_tokens: int = 12, **fields: Any) -> Generate:
    return request(name, PROMPT, max_tokens, generated_ids=WHOLE[:generated], **fields)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("cache", [False, True])
def test_answers_go_on_from_every_token(overlap: bool, cache: bool) -> None:
    bench = Bench(settings_of(prefix_cache=cache), overlap=overlap)
    for generated in range(1, 12):
        bench.add(resumed(f"r{generated}", generated))
        bench.run()
        assert bench.answers[f"r{generated}"] == WHOLE[generated:]
        assert [end.finish_reason for end in bench.terminals[f"r{generated}"]] == ["length"]
    status = bench.scheduler.status()
    assert status.pages_available == status.pages_total


def test_many_go_on_together_in_a_pool_that_is_too_small_for_all() -> None:
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.0), overlap=True)
    bench.add(*[resumed(f"r{generated}", generated) for generated in range(1, 12)])
    bench.run()
    assert bench.scheduler.status().retractions > 0
    for generated in range(1, 12):
        assert bench.answers[f"r{generated}"] == WHOLE[generated:]


@pytest.mark.parametrize(
    ("generated", "max_tokens", "stops", "reason"),
    [
        (5, 12, [WHOLE[4]], "stop"),
        (5, 5, [WHOLE[4]], "stop"),
        (5, 5, [], "length"),
        (6, 5, [], "length"),
    ],
)
def test_what_has_ended_already_ends_without_a_forward(
    generated: int, max_tokens: int, stops: list[int], reason: str
) -> None:
    bench = Bench(settings_of())
    bench.add(resumed("a", generated, max_tokens, stop_token_ids=stops))
    batches = bench.run()
    assert [batch.mode.value for batch in batches] == ["IDLE"]
    assert bench.answers["a"] == []
    assert [end.finish_reason for end in bench.terminals["a"]] == [reason]


def test_an_answer_that_fills_the_context_ends_there() -> None:
    bench = Bench(settings_of(context=20))
    bench.add(resumed("a", 8, max_tokens=100))
    bench.run()
    assert len(bench.answers["a"]) == 20 - len(PROMPT) - 8
    bench.add(resumed("b", 11, max_tokens=100))
    bench.run()
    assert bench.answers["b"] == []
    assert [end.finish_reason for end in bench.terminals["b"]] == ["length"]


def test_the_runner_is_told_of_the_whole_answer_and_never_scores_the_prompt_again() -> None:
    bench = Bench(settings_of())
    sampling = Sampling(presence_penalty=1.0, min_tokens=7)
    fields = {"stop_token_ids": [255], "prompt_logprobs": 2, "logprobs": 1}
    bench.add(
        Generate("a", PROMPT, 12, sampling, generated_ids=WHOLE[:4], **fields)  # type: ignore[arg-type]
    )
    (added,) = bench.run()[0].added_rows
    assert added.prompt_tokens == len(PROMPT)
    assert tokens_of(added) == (*PROMPT, *WHOLE[:4])
    assert (added.logprobs, added.prompt_logprobs) == (1, -1)
    assert added.stop_token_ids == (255,)
    assert added.sampling.min_tokens == 7
    assert all(delta.prompt_logprobs is None for delta in bench.deltas)


def test_no_delta_tells_a_first_token_twice() -> None:
    bench = Bench(settings_of(prefix_cache=True))
    bench.add(resumed("a", 3))
    bench.run()
    assert all(delta.queue_seconds is None for delta in bench.deltas)
    assert all(delta.cached_tokens == 0 for delta in bench.deltas)
