"""The speeds that engines of a canary report are compared with those of the former engines."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_operator.scaled import LOOKS, Look
from sluice_operator.service.rollout.rates import has_equal_load, slower

from tests.operator.service.rollout.canary_world import SHARES, engine, look


def looks(new: dict[str, Any], former: dict[str, Any], count: int = LOOKS) -> list[Look]:
    """Looks at one engine of each revision, which compute prompts meanwhile."""
    return [
        look(
            number / 6,
            engines=(
                engine("b", **{"prompt_tokens_total": 9 * number} | new),
                engine("a", **{"prompt_tokens_total": 9 * number} | former),
            ),
        )
        for number in range(count)
    ]


RATE, STEP = "marginal_prefill_tokens_per_second", "itl_seconds"


@pytest.mark.parametrize(
    ("new", "former", "text"),
    [
        ({RATE: 900.0}, {RATE: 1000.0}, ""),
        ({RATE: 500.0}, {RATE: 1000.0}, "pool mixed: a prompt token takes 2.00 times as long"),
        ({RATE: 500.0}, {}, ""),
        ({STEP: 0.03}, {STEP: 0.02}, "pool mixed: a step of answers takes 1.50 times as long"),
        ({STEP: 0.02}, {STEP: 0.03}, ""),
        ({STEP: 0.03, "running_requests": 8}, {STEP: 0.02}, ""),
        ({RATE: 500.0, "prompt_tokens_total": 7}, {RATE: 1000.0}, ""),
    ],
)
def test_a_revision_is_slower_by_what_its_engines_measured_lately(
    new: dict[str, Any], former: dict[str, Any], text: str
) -> None:
    assert slower(looks(new, former), SHARES).startswith(text)
    assert bool(slower(looks(new, former), SHARES)) is bool(text)


def test_one_look_without_a_difference_is_enough() -> None:
    all_slow = looks({RATE: 500.0}, {RATE: 1000.0})
    equal = looks({RATE: 1000.0}, {RATE: 1000.0})
    assert slower([*all_slow[:5], equal[5], *all_slow[6:]], SHARES) == ""
    assert slower(all_slow[1:], SHARES) == "", "too few"


def test_a_pool_that_does_not_change_is_not_compared() -> None:
    shares = {Role.MIXED: CanaryShare("a", "a", 25)}
    assert slower(looks({RATE: 500.0}, {RATE: 1000.0}), shares) == ""


@pytest.mark.parametrize(("new", "alike"), [(2, False), (3, True), (5, True), (6, False)])
def test_loads_are_alike_within_a_quarter(new: int, alike: bool) -> None:
    assert has_equal_load(looks({"running_requests": new}, {}), SHARES) is alike


def test_without_requests_loads_are_not_alike() -> None:
    assert not has_equal_load(looks({"running_requests": 0}, {"running_requests": 0}), SHARES)
    assert not has_equal_load([], SHARES)
