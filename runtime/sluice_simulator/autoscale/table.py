"""The output of a comparison: a table for people, JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sluice_simulator.autoscale.constants import GOAL
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.policy_comparison import OURS, ComparisonRow

HEAD = ("policy", "with", "attained", "hours", "ours/its", "TTFT p50", "p99", "peak", "changes")


def headline(scene: Scene) -> str:
    """The trace and what is promised."""
    trace, constants = scene.trace, scene.constants
    promise = constants.promise
    budget = f" · {constants.gpu_budget} GPUs" if constants.gpu_budget is not None else ""
    return (
        f"{trace.name}: {len(trace.requests):,} requests in {trace.seconds:,.0f} s, "
        f"{trace.prompt_tokens:,} tokens in, {trace.output_tokens:,} out\n"
        f"promised: TTFT {promise.ttft_seconds:g} s, ITL {promise.itl_seconds * 1000:g} ms · "
        f"an engine starts in {constants.boot_seconds:g} s{budget}"
    )


def table(rows: Sequence[ComparisonRow]) -> str:
    """Aligned, one policy a line; hours are those of replicas."""
    ours = _hours_of_ours(rows)
    lines = [HEAD, *(_cells(row, ours) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _hours_of_ours(rows: Sequence[ComparisonRow]) -> float | None:
    return next((row.outcome.replica_hours for row in rows if row.policy == OURS), None)


def _cells(row: ComparisonRow, ours: float | None) -> tuple[str, ...]:
    result = row.outcome
    mark = "" if result.attainment >= GOAL else " ≈" if row.reached else " <"
    return (
        row.policy,
        row.candidate.label,
        f"{result.attainment:.2%}{mark}",
        f"{result.replica_hours:.2f}",
        f"{ours / result.replica_hours:.2f}" if ours is not None else "",
        f"{result.ttft_p50_seconds:.2f}",
        f"{result.ttft_p99_seconds:.2f}",
        str(result.peak_replicas),
        str(result.changes),
    )


def json_lines(scene: Scene, rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """One object a policy: every figure, and ours as a share of its replica-hours."""
    ours = _hours_of_ours(rows)
    for row in rows:
        figures = asdict(row.outcome) | {"attainment": row.outcome.attainment}
        facts = {
            "trace": scene.trace.name,
            "pools": [str(role) for role in scene.roles],
            "policy": row.policy,
            "with": row.candidate.label,
            "replays": len(row.tried),
        }
        ratio = {"ours_to_its": ours / row.outcome.replica_hours} if ours is not None else {}
        yield json.dumps(facts | figures | ratio)
