"""The demands on our rule, and whether each is met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_simulator.autoscale.constants import GOAL
from sluice_simulator.autoscale.outcome import Outcome

from benchmarks.autoscale.measure import BOOT_SECONDS, Result

TUNED: Final = ("hpa", "keda-tuned")
MAX_BY_PLAN: Final = 1.4
MAX_BY_PLAN_BURST: Final = 1.55
MAX_BY_PLAN_LONG_BOOT: Final = 1.6
MAX_BY_STATIC: Final = 1.1
MAX_BY_SINGLE: Final = 0.75
MAX_CHANGES_AN_HOUR: Final = 20.0


@dataclass(frozen=True, slots=True)
class SingleSetting:
    """The setting of a rival that somebody would choose for all scenes of one pool."""

    policy: str
    label: str
    kept: int
    """Scenes on which it keeps what can be demanded, of `scenes`."""
    scenes: int
    both_kept: int
    """Scenes on which our rule keeps what can be demanded, too."""
    hours_by_ours: float
    """Geometric mean of its replica hours by ours, over the scenes that both keep."""


def single_setting(policy: str, results: Sequence[Result], as_ours: bool = True) -> SingleSetting:
    """The cheapest setting of those that keep the goal on as many scenes as ours does. If there is
    none, or without `as_ours`: the cheapest of those that keep it on most scenes."""
    one_pool = [result for result in results if len(result.fair.scene.roles) == 1]
    tried = [(result, dict(result.rows[policy].tried)) for result in one_pool]
    settings = [_setting(policy, label, tried) for label in tried[0][1]]
    least = max(setting.kept for setting in settings)
    if as_ours:
        least = min(least, kept_by_ours(one_pool))
    enough = [setting for setting in settings if setting.kept >= least]
    return min(enough, key=lambda setting: setting.hours_by_ours)


def _setting(
    policy: str, label: str, tried: Sequence[tuple[Result, Mapping[str, Outcome]]]
) -> SingleSetting:
    """`tried`: the outcomes of all settings on each scene, by label."""
    kept = [result for result, by_label in tried if by_label[label].attainment >= result.fair.goal]
    ratios = [
        by_label[label].replica_hours / result.ours.outcome.replica_hours
        for result, by_label in tried
        if result in kept and keeps(result)
    ]
    mean = statistics.geometric_mean(ratios) if ratios else math.inf
    return SingleSetting(policy, label, len(kept), len(tried), len(ratios), mean)


def keeps(result: Result) -> bool:
    """Whether ours keeps what can be demanded on the scene."""
    return result.ours.outcome.attainment >= result.fair.goal


def kept_by_ours(results: Sequence[Result]) -> int:
    """Scenes on which ours keeps what can be demanded."""
    return sum(map(keeps, results))


def changes_an_hour(result: Result) -> float:
    """Changes that our rule makes in an hour of the trace."""
    return result.ours.outcome.changes * 3600 / result.fair.scene.trace.seconds


def regretted_an_hour(result: Result) -> float:
    """Changes in an hour of the trace that our rule undid within the time of a start."""
    return result.ours.outcome.regretted * 3600 / result.fair.scene.trace.seconds


def verdicts(results: Sequence[Result], singles: Sequence[SingleSetting]) -> Iterator[str]:
    """A line a target. Costs are judged where ours keeps the share."""
    usual = [result for result in results if result.boot_seconds == BOOT_SECONDS]
    long = [result for result in results if result.boot_seconds != BOOT_SECONDS]
    for of_boot, named in ((usual, ""), (long, ", with starts of 90 s")):
        demanded = [result for result in of_boot if result.demands_goal]
        share = f"at least {100 * GOAL:g} % where all engines at once reach 99.5 %{named}"
        yield _verdict(share, demanded, _attainment, lambda _: -GOAL, "{:.4f}")
    plan = f"at most {MAX_BY_PLAN} of the plan's hours, {MAX_BY_PLAN_BURST} with bursts"
    kept = list(filter(keeps, usual))
    yield _verdict(plan, kept, lambda result: result.ours_by_plan, _max_by_plan, "{:.3f}")
    plan = f"at most {MAX_BY_PLAN_LONG_BOOT} of the plan's hours, with starts of 90 s"
    most = MAX_BY_PLAN_LONG_BOOT
    kept_long = list(filter(keeps, long))
    yield _verdict(plan, kept_long, lambda result: result.ours_by_plan, lambda _: most, "{:.3f}")
    fixed = [result for result in kept if result.rows["static"].reached]
    static = f"at most {MAX_BY_STATIC} of the hours of the best fixed size"
    yield _verdict(static, fixed, _by_static, lambda _: MAX_BY_STATIC, "{:.2f}")
    changes = f"at most {MAX_CHANGES_AN_HOUR:g} changes an hour"
    yield _verdict(changes, usual, changes_an_hour, lambda _: MAX_CHANGES_AN_HOUR, "{:.0f}")
    yield from map(_by_single, singles)


def _verdict(
    text: str,
    results: Sequence[Result],
    value: Callable[[Result], float],
    most: Callable[[Result], float],
    form: str,
) -> str:
    if not results:
        return f"- **not judged**: {text}: no such scene"
    missed = [
        f"{result.name} ({form.format(abs(value(result)))})"
        for result in results
        if value(result) > most(result)
    ]
    names = f"; not {', '.join(missed)}" if missed else ""
    kept = f"{len(results) - len(missed)} of {len(results)}"
    return f"- **{'missed' if missed else 'met'}**: {text}: {kept}{names}"


def _by_single(single: SingleSetting) -> str:
    text = (
        f"hours {100 * (1 - MAX_BY_SINGLE):.0f} % below the best single setting of {single.policy}"
    )
    if not single.both_kept:
        return f"- **not judged**: {text}: it keeps no scene that ours keeps"
    ours = 1 / single.hours_by_ours
    word = "met" if ours <= MAX_BY_SINGLE else "missed"
    return f"- **{word}**: {text}, or more: {100 * (1 - ours):.0f} %"


def _attainment(result: Result) -> float:
    """Our share of answers in time, negated because more is better."""
    return -result.ours.outcome.attainment


def _max_by_plan(result: Result) -> float:
    return MAX_BY_PLAN_BURST if "burst" in result.name else MAX_BY_PLAN


def _by_static(result: Result) -> float:
    return result.ours.outcome.replica_hours / result.rows["static"].outcome.replica_hours
