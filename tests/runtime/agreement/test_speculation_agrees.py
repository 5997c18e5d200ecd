"""Answers are the same with speculation on and off: greedy and sampled, however the engine is set
up and loaded.

As in any other batch, logits are the same but for rounding: a number that is drawn within 1e-7 of
the border between two tokens may give either. None of these loads has one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count, product
from typing import Any

import msgspec
import pytest
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.scheduler.prefill_planner import NO_DRAFTS, Drafts
from sluice_runtime.scheduler.speculation import Speculation
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.pairwise import matrix
from tests.runtime.grammar import driving
from tests.runtime.harness import Run, engine_config, generate, run_engine

MODEL = "dummy://qwen3-tiny"
SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.05, seed=1),
    Sampling(temperature=0.3, top_k=20, seed=2),
    Sampling(temperature=0.8, top_p=0.8, min_p=0.02, seed=3),
    Sampling(seed=4),
    Sampling(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    Sampling(temperature=0.05, logit_bias=[(7, 3.0), (65, -100.0)], seed=5),
]
SPECULATION = {"method": "NGram", "tokens": 4}
DRAFT: dict[str, Any] = {"method": "Draft", "tokens": 4, "draft": {"uri": "dummy://llama-tiny"}}
"""A model that is often wrong: it shares some of the model's random weights."""
METHODS = [SPECULATION, DRAFT]
ITSELF: dict[str, Any] = DRAFT | {"draft": {"uri": MODEL}}


def requests_of(answer: int, prompt: int, seed: int = 2) -> list[Generate]:
    """Two of each sampling: prompts that repeat phrases; some stop soon, some want logprobs."""
    draw = random.Random(seed)
    phrases = [[draw.randrange(256) for _ in range(7)] for _ in range(4)]
    requests = []
    for index, sampling in enumerate([*SAMPLINGS, *SAMPLINGS]):
        phrase = phrases[index % 4]
        tokens = (phrase * prompt)[: draw.randint(5, prompt)]
        stops = list(range(0, 250, 40)) if index % 3 == 1 else []
        sampling = msgspec.structs.replace(sampling, min_tokens=10 if index == 4 else 0)
        more: dict[str, Any] = {"stop_token_ids": stops, "logprobs": 3 if index % 4 == 3 else -1}
        requests.append(generate(f"r{index}", tokens, answer, sampling=sampling, **more))
    return requests


def run(requests: list[Generate], *, overlap: bool = False, **settings: Any) -> Run:
    defaults = {"dtype": "float32", "page_size": 16, "prefix_cache": False, "chunk_size": 64}
    config = engine_config(MODEL, **(defaults | settings))
    hooks = EngineHooks(poison_freed_pages=True)
    return run_engine(config, requests, hooks=hooks, overlap=overlap)


SETUPS: list[dict[str, Any]] = [
    {"chunk_size": -1, "mixed_chunk": False},
    {"chunk_size": 32, "prefix_cache": True, "page_size": 4, "attention_backend": "torch"},
    {
        "chunk_size": 32,
        "kv_pool_tokens": 224,
        "reserve_percent": 10,
        "prefix_cache": True,
    },
]


def test_a_few_answers_are_those_without_it() -> None:
    requests = requests_of(30, 40)[:7]
    without, drafting = run(requests), run(requests, speculation=SPECULATION)
    assert drafting.tokens == without.tokens
    assert ends(drafting) == ends(without)
    assert drafting.accepted_tokens > 20


def test_a_model_that_drafts_for_itself_is_right() -> None:
    """But for drafts behind the end of an answer: so its pages hold what they should."""
    requests = requests_of(30, 40)[:7]
    without, drafting = run(requests), run(requests, speculation=ITSELF)
    assert drafting.tokens == without.tokens
    assert drafting.drafted_tokens - drafting.accepted_tokens <= 4


@pytest.mark.process
@pytest.mark.parametrize("drafts", [SPECULATION, DRAFT, ITSELF], ids=["NGram", "Draft", "itself"])
def test_over_pages_of_8_bits_answers_stay_the_same(drafts: dict[str, Any]) -> None:
    """Also the draft model's: one that drafts for itself is right, as it reads the same numbers."""
    requests = requests_of(30, 40)[:7]
    settings: dict[str, Any] = {"kv_cache_dtype": "fp8_e4m3"}
    without, drafting = run(requests, **settings), run(requests, speculation=drafts, **settings)
    assert drafting.tokens == without.tokens
    assert drafting.accepted_tokens > 0
    if drafts is ITSELF:
        assert drafting.drafted_tokens - drafting.accepted_tokens <= 4


def test_a_model_catches_up_on_what_it_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps draft, ten do not."""
    steps, plan = count(), Speculation.plan

    def now_and_then(*arguments: Any) -> Drafts:
        return plan(*arguments) if next(steps) % 13 >= 10 else NO_DRAFTS

    monkeypatch.setattr(Speculation, "plan", now_and_then)
    requests = requests_of(50, 90)
    drafting = run(requests, speculation=ITSELF, overlap=True, chunk_size=1024)
    assert drafting.tokens == run(requests).tokens
    assert drafting.drafted_tokens > 60
    assert drafting.drafted_tokens - drafting.accepted_tokens <= 4 * len(requests)


GRAMMARS = [
    Grammar("regex", "(yes|no|maybe, ){4,60}!", [driving.EOS], "response_format"),
    Grammar(
        "json_schema",
        """{"type": "array", "minItems": 3, "items": {"type": "object", "additionalProperties":
        false, "required": ["name", "size"], "properties": {"name": {"enum": ["one", "two"]},
        "size": {"type": "integer"}}}}""",
        [driving.EOS],
        "response_format",
    ),
    Grammar("regex", "[a-d]{5,200}", [driving.EOS], "response_format", ends_late=True),
    Grammar("regex", "(a|b|ab)*", [driving.EOS, 97], "response_format", min_tokens=15),
    Grammar("regex", "[ab]{0,9}", [driving.EOS], "response_format"),
]
"""Some end soon, and what is drawn after an end is free."""


def constrained(answer: int, samplings: Sequence[Sampling] = SAMPLINGS) -> list[Generate]:
    """One of each grammar and sampling, and some without a grammar."""
    requests = []
    for index, (grammar, sampling) in enumerate(product([*GRAMMARS, None], samplings)):
        more: dict[str, Any] = {"logprobs": 3} if index % 5 == 3 else {}
        goes_on = index % 4 == 2
        request = driving.ask(f"r{index}", grammar, answer, sampling=sampling, **more)
        stops = [] if goes_on else [driving.EOS]
        requests.append(msgspec.structs.replace(request, stop_token_ids=stops))
    return requests


Answered = tuple[dict[str, list[int]], dict[str, tuple[Any, Any]], int, int]


def answered(requests: list[Generate], *, overlap: bool = False, **settings: Any) -> Answered:
    """Tokens, ends, and how many drafts were verified and kept."""
    defaults: dict[str, Any] = {"dtype": "float32", "page_size": 16, "prefix_cache": False}
    with driving.engine_of(**(defaults | settings)) as engine:
        answers = driving.run(engine, requests, overlap=overlap)
        status = engine.scheduler.status()
    ends = {name: (end.finish_reason, end.error) for name, end in answers.ends.items()}
    return answers.tokens, ends, status.drafted_tokens, status.accepted_tokens


def test_a_few_answers_in_a_grammar_are_those_without_drafts() -> None:
    requests = constrained(40, [SAMPLINGS[0], SAMPLINGS[5]])
    without, drafting = answered(requests), answered(requests, speculation=SPECULATION)
    assert drafting[:2] == without[:2]
    assert drafting[3] > 40


def test_a_model_drafts_within_the_grammar_and_counts_its_own_drafts() -> None:
    requests = constrained(30, [SAMPLINGS[4], SAMPLINGS[5]])
    without, drafting = answered(requests), answered(requests, speculation=ITSELF)
    assert drafting[:2] == without[:2]
    assert drafting[3] > 100
    assert drafting[2] - drafting[3] <= 4 * len(requests), "more than behind the ends of answers"


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "speculation", "overlap"),
    matrix(SETUPS, METHODS, [False, True], others=pytest.mark.full, together=1),
    ids=str,
)
def test_answers_in_a_grammar_are_those_without_it(
    settings: dict[str, Any], speculation: dict[str, Any], overlap: bool
) -> None:
    requests = constrained(50)
    without = answered(requests, **settings)
    drafting = answered(requests, overlap=overlap, speculation=speculation, **settings)
    assert drafting[:2] == without[:2]
    assert drafting[3] > 5


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "speculation", "overlap"),
    matrix(SETUPS, METHODS, [False, True], others=pytest.mark.full),
    ids=str,
)
def test_answers_are_those_without_it(
    settings: dict[str, Any], speculation: dict[str, Any], overlap: bool
) -> None:
    requests = requests_of(50, 90)
    without = run(requests, **settings)
    drafting = run(requests, overlap=overlap, speculation=speculation, **settings)
    assert drafting.tokens == without.tokens
    assert ends(drafting) == ends(without)
    assert drafting.modes["TARGET_VERIFY"]
    assert drafting.accepted_tokens > (100 if speculation is SPECULATION else 20)
    assert drafting.drafted_tokens > drafting.accepted_tokens, "no draft was wrong"
    if "kv_pool_tokens" in settings and speculation is SPECULATION:
        assert drafting.retractions


def assert_drafts_are_right(drafting: Run, requests: int, settings: dict[str, Any]) -> None:
    """Of a model that draws what the target does; and that the settings did what they are for."""
    wrong = drafting.drafted_tokens - drafting.accepted_tokens
    assert wrong <= 4 * requests, "more than those behind the ends of answers"
    if "kv_pool_tokens" in settings:
        assert drafting.retractions
    if settings.get("prefix_cache"):
        assert sum(drafting.cached.values()) > 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "overlap"),
    matrix(SETUPS, [False, True], others=pytest.mark.full, together=1),
    ids=str,
)
def test_a_model_drafts_from_pages_that_were_cached_cut_or_sent_back(
    settings: dict[str, Any], overlap: bool
) -> None:
    requests = requests_of(50, 90)
    drafting = run(requests, overlap=overlap, speculation=ITSELF, **settings)
    assert drafting.tokens == run(requests, **settings).tokens
    assert drafting.drafted_tokens > 50
    assert_drafts_are_right(drafting, len(requests), settings)


@pytest.mark.process
@pytest.mark.parametrize("speculation", [SPECULATION, DRAFT], ids=["NGram", "Draft"])
def test_logprobs_are_those_of_each_token(speculation: dict[str, Any]) -> None:
    requests = [r for r in requests_of(50, 90) if r.logprobs >= 0]
    without, drafting = run(requests), run(requests, speculation=speculation)
    assert drafting.accepted_tokens > 10
    for name in without.tokens:
        expected, scored = scores(without, name), scores(drafting, name)
        assert [token for token, _ in scored] == drafting.tokens[name]
        assert [value for _, value in scored] == pytest.approx(
            [value for _, value in expected], abs=1e-4
        )


@pytest.mark.process
@pytest.mark.parametrize("seed", [0, *range(2, 10)])
def test_answers_are_those_without_it_under_random_loads(seed: int) -> None:
    draw = random.Random(seed)
    settings: dict[str, Any] = {
        "page_size": draw.choice([1, 4, 16]),
        "chunk_size": draw.choice([16, 48, 128]),
        "prefix_cache": draw.choice([True, False]),
        "max_running_requests": draw.choice([3, 9, 64]),
        "kv_pool_tokens": draw.choice([288, 512, 4096]),
    }
    requests = requests_of(draw.choice([20, 70]), draw.choice([40, 120]), seed)
    without = run(requests, **settings)
    speculation = draw.choice([SPECULATION, DRAFT]) | {"tokens": draw.choice([1, 3, 8, 16])}
    drafting = run(requests, overlap=draw.random() < 0.5, speculation=speculation, **settings)
    assert drafting.tokens == without.tokens
    assert ends(drafting) == ends(without)


def ends(run: Run) -> dict[str, list[tuple[str | None, str | None]]]:
    return {
        name: [(delta.finish_reason, delta.error) for delta in deltas]
        for name, deltas in run.terminals.items()
    }


def scores(run: Run, name: str) -> list[tuple[int, float]]:
    deltas = [delta for delta in run.deltas if delta.request_id == name]
    return [(score.token_id, score.logprob) for delta in deltas for score in delta.logprobs]
