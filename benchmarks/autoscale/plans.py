"""Plans in hindsight: found by searches of minutes, stored next to the benchmark, and replayed.

If a stored plan no longer keeps its share, another one is searched for.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.climb import climb
from sluice_simulator.autoscale.grids import plan_candidate
from sluice_simulator.autoscale.outcome import outcome
from sluice_simulator.autoscale.policies.policy import Plan, Steps
from sluice_simulator.autoscale.policy_comparison import ComparisonRow, FairScene, compete, play

FILE: Final = Path(__file__).with_name("plans.json")
POLICY: Final = "plan"
SEARCH_SECONDS: Final = 20.0
"""CPU seconds of a search, for a scene that has no plan."""

Plans = Mapping[Role, Steps]


def stored(name: str, boot_seconds: float) -> Plans | None:
    """The plan of a scene."""
    plans = json.loads(FILE.read_text()) if FILE.exists() else {}
    roles = plans.get(name, {}).get(f"{boot_seconds:g}")
    if roles is None:
        return None
    return {Role(role): [(second, engines) for second, engines in roles[role]] for role in roles}


def store(name: str, boot_seconds: float, plans: Plans) -> None:
    """Replaces the stored plan of a scene."""
    every = json.loads(FILE.read_text()) if FILE.exists() else {}
    roles = {
        str(role): [[int(second), engines] for second, engines in steps]
        for role, steps in plans.items()
    }
    every.setdefault(name, {})[f"{boot_seconds:g}"] = roles
    lines = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(boot)}: {json.dumps(of_boot, separators=(',', ':'))}"
            for boot, of_boot in sorted(boots.items())
        )
        + "\n }"
        for name, boots in sorted(every.items())
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def plan_row(fair: FairScene, known: Plans | None, climb_seconds: float | None) -> ComparisonRow:
    """The row of the known plan, or of one that is searched for where the known one does not keep
    the goal. `climb_seconds`: CPU seconds to look for a cheaper plan in any case."""
    row = _replayed(fair, known) if known else None
    if row is None or not row.reached:
        row = compete(fair.scene, fair.goal, POLICY)
        climb_seconds = climb_seconds or SEARCH_SECONDS
    if climb_seconds is None:
        return row
    end = time.process_time() + climb_seconds
    draw = random.Random(0)
    plans = climb(fair.scene, plans_of(row), fair.goal, draw, lambda: time.process_time() < end)
    return _replayed(fair, plans)


def plans_of(row: ComparisonRow) -> Plans:
    """The plans by which a row was made."""
    policy = row.candidate.policy()
    assert isinstance(policy, Plan)
    return policy.steps


def _replayed(fair: FairScene, plans: Plans) -> ComparisonRow:
    candidate = plan_candidate(fair.scene, "climbed", plans)
    result = outcome(play(fair.scene, candidate), fair.scene.constants)
    return ComparisonRow(
        POLICY, candidate, result, [(candidate.label, result)], result.attainment >= fair.goal
    )
