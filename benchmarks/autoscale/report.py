"""The results as Markdown: the table of docs/benchmarks.md, and as JSON lines for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sluice_simulator.autoscale.policy_comparison import ComparisonRow

from benchmarks.autoscale.measure import BOOT_SECONDS, LONG_BOOT_SECONDS, Result
from benchmarks.autoscale.scenes import half_of
from benchmarks.autoscale.targets import (
    TUNED,
    changes_an_hour,
    kept_by_ours,
    regretted_an_hour,
    single_setting,
)

HEAD: Final = (
    *(
        "scene",
        "half",
        "reachable",
        "ours: good",
        "hours",
        "hpa",
        "keda",
        "static",
        "plan in hindsight",
    ),
    *("ours ÷ plan", "changes an hour", "undone", "KEDA as shipped"),
    *(f"ours, starts of {LONG_BOOT_SECONDS:g} s", "÷ plan"),
)
TITLES: Final = {
    "azure-conv": "Azure, conversations",
    "azure-code": "Azure, code",
    "azure-code-512": "Azure, code, chunk at most 512",
    "mooncake": "Mooncake, conversations",
    "mooncake-synthetic": "Mooncake, synthetic",
    "ramp-balanced": "ramp 2,048/2,048",
    "ramp-prefill": "ramp 8,192/256",
    "ramp-decode": "ramp 256/4,096",
}
ENDINGS: Final = {"-diurnal": ", diurnal", "-burst": ", bursts", "-two-pools": ", in two pools"}


def table(results: Sequence[Result]) -> Iterator[str]:
    """A row a scene."""
    usual = [result for result in results if result.boot_seconds == BOOT_SECONDS]
    long = {result.name: result for result in results if result.boot_seconds != BOOT_SECONDS}
    yield _line(HEAD)
    yield _line(["---", "---", *["---:"] * (len(HEAD) - 2)])
    for result in usual:
        yield _line(_cells(result, long[result.name]))


def ours_table(results: Sequence[Result]) -> Iterator[str]:
    """A row a scene and time of a start, with our figures alone."""
    head = ("scene", "half", "start", "good", "hours", "changes an hour", "undone")
    yield _line(head)
    yield _line(["---", "---", *["---:"] * (len(head) - 2)])
    for result in results:
        ours = result.ours.outcome
        yield _line(
            (
                *(result.name, half_of(result.name), f"{result.boot_seconds:g} s"),
                *(_percent(ours.attainment, 2), f"{ours.replica_hours:.2f}"),
                f"{changes_an_hour(result):.0f}",
                f"{regretted_an_hour(result):.0f}",
            )
        )


def settings(results: Sequence[Result]) -> Iterator[str]:
    """The best single settings of HPA and KEDA, for all scenes of one pool."""
    ours = kept_by_ours([result for result in results if len(result.fair.scene.roles) == 1])
    for policy in TUNED:
        for as_ours, text in ((True, "as many scenes as ours or more"), (False, "most scenes")):
            single = single_setting(policy, results, as_ours)
            yield (
                f"- {policy}, the cheapest single setting that keeps the goal on {text}: "
                f"{single.label}; on {single.kept} of {single.scenes} (ours: {ours}); "
                f"{single.hours_by_ours:.2f} times ours' hours on {single.both_kept} that both keep"
            )


def title(name: str) -> str:
    """Text for a scene."""
    for ending, text in ENDINGS.items():
        if name.endswith(ending):
            return title(name.removesuffix(ending)) + text
    return TITLES.get(name, name)


def _cells(result: Result, long: Result) -> Sequence[str]:
    ours = result.ours.outcome
    return (
        title(result.name),
        half_of(result.name),
        _reachable(result),
        _percent(ours.attainment, 2),
        f"{ours.replica_hours:.2f}",
        *(_hours(result.rows[policy]) for policy in ("hpa", "keda-tuned", "static", "plan")),
        f"{result.ours_by_plan:.2f}",
        f"{changes_an_hour(result):.0f}",
        f"{regretted_an_hour(result):.0f}",
        _share_and_hours(result.rows["keda"]),
        _share_and_hours(long.ours) + ("" if long.demands_goal else f" ({_reachable(long)})"),
        f"{long.ours_by_plan:.2f}",
    )


def _reachable(result: Result) -> str:
    since = result.fair.scene.constants.judged_from_seconds
    return _percent(result.fair.reachable, 1) + (f" from {since:g} s on" if since else "")


def _hours(row: ComparisonRow) -> str:
    hours = f"{row.outcome.replica_hours:.2f}"
    return hours if row.reached else f"({hours}: {_percent(row.outcome.attainment, 0)})"


def _share_and_hours(row: ComparisonRow) -> str:
    return f"{_percent(row.outcome.attainment, 1)}, {row.outcome.replica_hours:.2f}"


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
