"""The rules of a promise: shares as histogram_quantile counts them, thresholds that can be reached,
a child only where the kind and the promise are."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.metrics import LATENCY_SECONDS
from sluice_operator.api.scaling import Slo
from sluice_operator.kube.kinds import OPTIONAL_CHILDREN, POD_MONITOR, PROMETHEUS_RULE, Manifest
from sluice_operator.manifests.monitoring import PACES, between, slo_groups
from sluice_operator.service.plan import plan_service

from tests.operator.examples import service, service_observed


def rules(**slo: float | str) -> list[Manifest]:
    (group,) = slo_groups("default", "chat", Slo.model_validate(slo))
    found: list[Manifest] = group["rules"]
    return found


@given(st.floats(1e-4, 299), st.lists(st.floats(0, 299), min_size=1, max_size=40))
def test_a_share_between_two_buckets_is_linear(limit: float, times: list[float]) -> None:
    def below(bound: float) -> int:
        return sum(time <= bound for time in times)

    found = sum(weight * below(bound) for bound, weight in between(limit))
    place = bisect_left(LATENCY_SECONDS, limit)
    low, high = (0.0, *LATENCY_SECONDS)[place], LATENCY_SECONDS[place]
    lower = below(low) if place else 0
    expected = lower + (below(high) - lower) * (limit - low) / (high - low)
    assert found == pytest.approx(expected)


def test_a_limit_that_is_a_bucket_needs_no_other_and_one_beyond_all_takes_the_last() -> None:
    assert between(1.0) == [(1.0, 1.0)]
    assert between(3600) == [(LATENCY_SECONDS[-1], 1.0)]


@given(st.floats(50, 99.9))
def test_every_threshold_is_more_than_the_budget_and_can_be_passed(percentile: float) -> None:
    budget = 1 - percentile / 100
    fast, slow = (pace.threshold(budget) for pace in PACES)
    assert budget < slow < fast < 0.99


def test_a_promise_for_all_but_one_of_a_thousand_has_its_budget() -> None:
    alerts = [rule for rule in rules(ttftMilliseconds=800, percentile="99.9") if "alert" in rule]
    assert "> 0.0144 and" in alerts[0]["expr"]
    assert "of which 0.1% may" in alerts[0]["annotations"]["description"]


def test_thresholds_of_small_budgets_are_the_paces() -> None:
    conditions = [rule["expr"] for rule in rules(ttftMilliseconds=800) if "alert" in rule]
    assert "> 0.72 and" in conditions[0]
    assert "> 0.3 and" in conditions[1]
    assert [c.count("> 0.0144") for c in conditions] == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ("slo", "alerts"),
    [
        ({"ttftMilliseconds": 800}, {"SluiceTtftBudgetBurn"}),
        ({"itlMilliseconds": 50}, {"SluiceItlBudgetBurn"}),
        (
            {"ttftMilliseconds": 1, "itlMilliseconds": 3_600_000, "percentile": 50},
            {"SluiceTtftBudgetBurn", "SluiceItlBudgetBurn"},
        ),
    ],
)
def test_what_is_promised_is_watched(slo: dict[str, float], alerts: set[str]) -> None:
    found = rules(**slo)
    watched = {rule["alert"] for rule in found if "alert" in rule}
    assert watched == alerts | {"SluiceErrorBudgetBurn"}
    recorded = {(rule["record"], rule["labels"]["slo"]) for rule in found if "record" in rule}
    assert len(recorded) == 4 * len(watched)


def test_first_tokens_are_timed_at_the_router_and_at_engines_where_it_sees_none() -> None:
    expression = rules(ttftMilliseconds=1000)[0]["expr"]
    router, engines = expression.split(" or ")
    for share, name in (
        (router, "sluice_router_first_byte_seconds"),
        (engines, "sluice_time_to_first_token_seconds"),
    ):
        assert f'{name}_bucket{{le="1.0", ' in share
        assert f"{name}_count{{" in share
        assert ('answer="stream"' in share) == (share is router)
    assert router.endswith(" > 0)"), "no share of nothing"


@pytest.mark.parametrize("kinds", [(), (POD_MONITOR,), OPTIONAL_CHILDREN])
@pytest.mark.parametrize("slo", [None, {"itlMilliseconds": 50}])
def test_the_child_is_planned_where_the_kind_and_a_promise_are(
    kinds: tuple[object, ...], slo: dict[str, int] | None
) -> None:
    plan = plan_service(
        service_observed(service({"slo": slo} if slo else {}), optional_kinds=kinds)
    )
    names = [m["metadata"]["name"] for m in plan.apply if m["kind"] == PROMETHEUS_RULE.kind]
    assert names == (["chat-slo"] if slo and PROMETHEUS_RULE in kinds else [])
