"""Speeds of a canary's engines are compared with those of the former engines, at equal work."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import StepCosts, StepShapes
from sluice_operator.scaled import LOOKS, Look
from sluice_operator.service.rollout.rates import compared_speed, has_no_more_requests
from sluice_runtime.scheduler.batch import StepShape, context_products
from sluice_runtime.scheduler.cost_model import CostModel

from tests.operator.service.rollout.canary_world import SHARES, engine, look

DEVICE = (7e-3, 20e-6, 1.5e-9, 5e-5, 2e-8)
"""Seconds of a step, a prompt token, a pair of tokens, a decode row, a token of its context: of an
8 B model on an H100."""


class Work(NamedTuple):
    """An engine's load, and how much longer than `DEVICE` its steps take."""

    context: int = 1000
    rows: int = 8
    decode: float = 1.0
    prefill: float = 1.0
    prompts: float = 0.2
    """Share of the steps that compute prompts."""


def engines(revision: str, work: Work, seed: int, role: Role = Role.MIXED) -> list[EngineSample]:
    """What one engine reports in successive looks, by the real cost model."""
    draw, model, samples = random.Random(seed), CostModel(), []
    for number in range(LOOKS):
        for _ in range(40 if number else 250):
            tokens = draw.choice((512, 512, 200)) if draw.random() < work.prompts else 0
            rows = max(not tokens, round(draw.gauss(work.rows, work.rows / 3))) * bool(work.rows)
            context = rows * draw.uniform(0.7, 1.3) * work.context
            start = int(draw.uniform(0, 2) * work.context)
            products = context_products(start, tokens) if tokens else 0
            shape = StepShape(tokens, products, rows, round(context))
            seconds = sum(c * f for c, f in zip(DEVICE, shape.features, strict=True))
            seconds *= work.prefill if tokens else work.decode
            model.observe(shape, seconds * draw.lognormvariate(0, 0.05))
        samples.append(replace(engine(revision, costs=model.costs()), role=role))
    return samples


def slower(looks: Sequence[Look], shares: Mapping[Role, CanaryShare]) -> str:
    return compared_speed(looks, shares).slower


def is_speed_compared(looks: Sequence[Look], shares: Mapping[Role, CanaryShare]) -> bool:
    return compared_speed(looks, shares).is_compared


def looks(new: Sequence[EngineSample], former: Sequence[EngineSample]) -> list[Look]:
    pairs = zip(new, former, strict=True)
    return [look(number / 6, engines=pair) for number, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("new", "former"),
    [
        (Work(), Work()),
        (Work(context=8000), Work()),
        (Work(), Work(context=8000)),
        (Work(context=30_000), Work()),
        (Work(), Work(context=30_000)),
        (Work(rows=1), Work()),
        (Work(), Work(rows=1)),
    ],
)
def test_equal_builds_are_equal_whatever_they_compute(new: Work, former: Work) -> None:
    assert slower(looks(engines("b", new, 1), engines("a", former, 2)), SHARES) == ""


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (Work(rows=24, decode=3), "pool mixed: a step without prompts takes 2."),
        (Work(prompts=0.5, prefill=3), "pool mixed: a step with prompts takes 2."),
    ],
)
def test_a_slower_build_is_slower_though_it_has_more_to_do(new: Work, text: str) -> None:
    assert slower(looks(engines("b", new, 1), engines("a", Work(), 2)), SHARES).startswith(text)


@pytest.mark.parametrize(
    ("role", "work", "slow", "text"),
    [
        (
            Role.DECODE,
            Work(prompts=0),
            Work(prompts=0, rows=24, decode=3),
            "without prompts takes 2.",
        ),
        (
            Role.PREFILL,
            Work(prompts=1, rows=0),
            Work(prompts=1, rows=0, prefill=3),
            "with prompts takes 3.",
        ),
    ],
)
def test_pools_of_one_role_are_compared(role: Role, work: Work, slow: Work, text: str) -> None:
    shares = {role: CanaryShare("b", "a", 25)}
    former = engines("a", work, 2, role)
    halted = slower(looks(engines("b", slow, 1, role), former), shares)
    assert halted.startswith(f"pool {role}: a step {text}")
    assert slower(looks(engines("b", work, 1, role), former), shares) == ""


def decoding(seconds: float, number: int, product: float = 0.0, context: float = 9.0) -> StepCosts:
    """Costs of an engine whose steps take so long."""
    shapes = StepShapes(steps=9 * number, mean=(1.0, product and 1.0, product, 4.0, context))
    return StepCosts(seconds=(seconds, 0.0, 0.0, 0.0, 0.0), decode=shapes)


def fixed(
    ratios: Sequence[float], product: float = 0.0, context: float = 9.0, **new: Any
) -> list[Look]:
    return looks(
        [
            engine("b", **{"costs": decoding(r, n, product, context)} | new)
            for n, r in enumerate(ratios)
        ],
        [engine("a", costs=decoding(1.0, n, bool(product))) for n in range(len(ratios))],
    )


SLOW = [1.2] * LOOKS


def test_every_look_shows_the_difference() -> None:
    assert slower(fixed(SLOW), SHARES)
    assert slower(fixed([1.14] * LOOKS), SHARES) == ""
    assert slower(fixed([*SLOW[1:], 1.1]), SHARES) == ""
    assert slower(fixed(SLOW[3:]), SHARES) == "", "too few"


def test_whether_speeds_were_compared_is_known() -> None:
    assert is_speed_compared(fixed([1.0] * LOOKS), SHARES)
    assert not is_speed_compared(fixed(SLOW[3:]), SHARES), "too few"
    assert not is_speed_compared(fixed(SLOW, costs=None), SHARES)
    two = SHARES | {Role.DECODE: CanaryShare("b", "a", 25)}
    assert not is_speed_compared(fixed([1.0] * LOOKS), two), "of one pool alone"
    assert is_speed_compared(
        fixed([1.0] * LOOKS), SHARES | {Role.DECODE: CanaryShare("a", "a", 25)}
    )


def test_an_extrapolation_in_one_direction_is_not_enough() -> None:
    small, large = (1.0, 0.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.0, 9.0, 0.0)
    new, former = (
        [
            engine(
                revision,
                costs=StepCosts(
                    seconds=(1.0, 0.0, 0.0, row, 0.0), decode=StepShapes(steps=number, mean=mean)
                ),
            )
            for number in range(1, LOOKS + 1)
        ]
        for revision, row, mean in (("b", 0.2, large), ("a", 0.0, small))
    )
    assert slower(looks(new, former), SHARES), "1.2 and 2.8 times"
    new = [replace(e, figures=replace(e.figures, costs=replace(c, seconds=(0.9, 0, 0, 0.2, 0))))
           for e in new if (c := e.figures.costs)]  # fmt: skip
    assert slower(looks(new, former), SHARES) == "", "1.1 and 2.7 times"


def test_what_no_longer_runs_is_not_compared() -> None:
    assert slower(fixed(SLOW, costs=decoding(1.2, 1)), SHARES) == ""
    assert slower(fixed(SLOW, costs=None), SHARES) == ""


def test_tokens_with_quite_other_contexts_are_not_compared() -> None:
    assert slower(fixed(SLOW, product=7.0), SHARES)
    assert slower(fixed(SLOW, product=9.0), SHARES) == ""
    assert slower(fixed(SLOW, context=7 * 9.0), SHARES)
    assert slower(fixed(SLOW, context=9 * 9.0), SHARES) == ""


def test_a_pool_that_does_not_change_is_not_compared() -> None:
    assert slower(fixed(SLOW), {Role.MIXED: CanaryShare("a", "a", 25)}) == ""


def requests(new: int, former: int, **figures: Any) -> list[Look]:
    return looks(
        [engine("b", finished_requests_total=new * n, **figures) for n in range(3)],
        [engine("a", finished_requests_total=former * n) for n in range(3)],
    )


@pytest.mark.parametrize(("new", "counts"), [(0, True), (5, True), (10, True), (11, False)])
def test_late_answers_count_unless_the_new_engines_get_more_requests(
    new: int, counts: bool
) -> None:
    assert has_no_more_requests(requests(new, 8), SHARES) is counts


def test_a_long_queue_is_the_revisions_own() -> None:
    assert has_no_more_requests(requests(8, 8, running_requests=24), SHARES)


@pytest.mark.parametrize(("queued", "counts"), [(2, True), (3, False)])
def test_requests_that_wait_in_a_full_engine_are_received(queued: int, counts: bool) -> None:
    """It finishes as many as the former one, though it gets more."""
    new = [engine("b", finished_requests_total=8 * n, queued_requests=queued * n) for n in range(3)]
    former = [engine("a", finished_requests_total=8 * n) for n in range(3)]
    assert has_no_more_requests(looks(new, former), SHARES) is counts


def test_without_requests_late_answers_do_not_count() -> None:
    assert not has_no_more_requests(requests(0, 0), SHARES)
    assert not has_no_more_requests([], SHARES)
