"""On a device a step is launched before the one before it has landed: its tokens are fed there,
the host reads them late, and answers are the same as one step at a time on the CPU."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from sluice_contract.config.engine import AttentionBackend
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.engine.executors import StreamExecutor
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode, PagesAppended, RowAdded
from sluice_runtime.wire.messages import Sampling, TokenLogprob

from tests.examples import examples
from tests.runtime.engine.late_device import LateDevice
from tests.runtime.grammar.driving import ask, engine_of, grammar, run
from tests.runtime.harness import engine_config, generate, run_engine

GREEDY = Sampling(temperature=0.0)
SAMPLINGS = (
    GREEDY,
    Sampling(temperature=1.0, seed=7),
    Sampling(temperature=0.8, seed=3, top_p=0.9, top_k=20),
    Sampling(temperature=1.0, seed=9, presence_penalty=0.4, frequency_penalty=0.3),
    Sampling(temperature=0.0, repetition_penalty=1.3, min_tokens=4, logit_bias=[(5, 2.0)]),
)
SMALL = {"page_size": 4, "chunk_size": 24, "kv_pool_tokens": 160, "max_running_requests": 5}


@examples(
    8,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink it would take minutes
)
@given(
    asked=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 20), st.sampled_from(SAMPLINGS)),
        min_size=2,
        max_size=9,
    ),
    backend=st.sampled_from(["torch", "auto"]),
    mixed=st.booleans(),
)
def test_answers_are_those_of_one_step_at_a_time(
    asked: list[tuple[int, int, Sampling]], backend: AttentionBackend, mixed: bool
) -> None:
    """With a pool that is too small for all: rows are retracted, pages and rows used again."""
    requests = [
        generate(f"r{i}", range(i, i + prompt), answer, sampling=sampling, credit_tokens=64)
        for i, (prompt, answer, sampling) in enumerate(asked)
    ]
    chosen = {"mixed_chunk": mixed, "attention_backend": backend}
    config = engine_config("dummy://qwen3-tiny", **SMALL, **chosen)
    plain = run_engine(config, requests)
    hooks = EngineHooks(device=LateDevice(), poison_freed_pages=True)
    ahead = run_engine(config, requests, hooks=hooks, overlap=True)
    assert ahead.tokens == plain.tokens
    assert ahead.launched_ahead or max(answer for _, answer, _ in asked) < 3


def test_a_step_is_launched_without_the_tokens_of_the_one_before() -> None:
    device = LateDevice()
    with engine_of(EngineHooks(device=device)) as engine:
        runner = engine.runner
        added = Batch(
            1,
            ForwardMode.EXTEND,
            added_rows=(RowAdded(0, "a", GREEDY),),
            appended_pages=(PagesAppended(0, (3, 5)),),
            extend_rows=(ExtendRow(0, 0, (1, 2, 3), samples=True),),
        )
        decode = [Batch(step, ForwardMode.DECODE, decode_rows=(0,)) for step in (2, 3)]
        steps = [runner.launch(batch) for batch in (added, *decode)]
        assert device.waited == 0
        ahead = [step.land().token_ids for step in steps]
        assert device.waited == 3
        assert steps[0].land().token_ids == ahead[0]
        assert device.waited == 3
    with engine_of() as engine:
        assert [engine.runner.forward(batch).token_ids for batch in (added, *decode)] == ahead


def scores(hooks: EngineHooks, overlap: bool) -> dict[str, list[TokenLogprob]]:
    """By request, of its prompt and then of its answer."""
    requests = [
        generate(f"r{i}", range(40 + i), 6, logprobs=top, prompt_logprobs=prompt, credit_tokens=64)
        for i, (top, prompt) in enumerate([(3, 2), (-1, 1), (0, -1), (-1, -1)])
    ]
    config = engine_config("dummy://qwen3-tiny", **SMALL)
    found: dict[str, list[TokenLogprob]] = {}
    for delta in run_engine(config, requests, hooks=hooks, overlap=overlap).deltas:
        of = found.setdefault(delta.request_id, [])
        of += [*(delta.prompt_logprobs or []), *delta.logprobs]
    return found


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "ahead"])
def test_scores_are_those_of_the_host(overlap: bool) -> None:
    """But for rounding, since rows may share their steps with others."""
    found, expected = (
        scores(EngineHooks(device=LateDevice()), overlap),
        scores(EngineHooks(), False),
    )
    assert {name: len(of) for name, of in expected.items()} == {
        "r0": 45,
        "r1": 40,
        "r2": 6,
        "r3": 0,
    }
    for name, of in expected.items():
        for ours, theirs in zip(found[name], of, strict=True):
            assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


def test_a_mask_has_the_tokens_of_the_step_before() -> None:
    """Which lands between forward pass and mask. Rows without a grammar run beside it."""
    requests = [
        ask("ruled", grammar("regex", "[a-c]{3}[x-z]{9}")),
        ask("shorter", grammar("regex", "(ab|cd)+e")),
        ask("free", None, max_tokens=20),
    ]
    with engine_of() as engine:
        plain = run(engine, requests)
    assert re.fullmatch("[a-c]{3}[x-z]{9}", plain.text("ruled"))
    hooks = EngineHooks(device=LateDevice(), poison_freed_pages=True)
    with engine_of(hooks) as engine:
        for overlap in (False, True):
            assert run(engine, requests, overlap=overlap).tokens == plain.tokens, overlap


@pytest.mark.parametrize("overlap", [False, True])
def test_the_setting_overlap_says_how_far_a_device_is_ahead(overlap: bool) -> None:
    with (
        engine_of(EngineHooks(device=LateDevice())) as engine,
        closing(engine.executor(overlap=overlap)) as executor,
    ):
        assert isinstance(executor, StreamExecutor)
        assert executor.ahead == int(overlap)
