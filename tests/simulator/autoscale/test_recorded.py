"""What our scaling reached on traces of a seed is not to get worse.

`SLUICE_WRITE_RECORDED=1` writes what it reaches now; read the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.policy_comparison import compete
from sluice_simulator.autoscale.shapes import formed, ramp, ramp_constants
from sluice_simulator.traces.request import window

from tests.simulator.autoscale.scenes import chats

RECORDED: Final = Path(__file__).with_name("recorded.json")
ATTAINMENT_SLACK: Final = 0.002
HOURS_SLACK: Final = 1.02
TWO: Final = (Role.PREFILL, Role.DECODE)
SCENES: Final = {
    "steps": Scene(chats(900.0, 2.0), AZURE, (Role.MIXED,)),
    "diurnal": Scene(formed(chats(1200.0, 1.5, 1), "diurnal"), AZURE, (Role.MIXED,)),
    "burst": Scene(formed(chats(1200.0, 1.0, 2), "burst"), AZURE, (Role.MIXED,)),
    "two-pools": Scene(chats(900.0, 1.5, 3), replace(AZURE, gpu_budget=16), TWO),
    "shift": Scene(
        ramp("shift"), replace(ramp_constants("shift", AZURE), gpu_budget=8, max_replicas=7), TWO
    ),
    "ramp": Scene(
        window(ramp("ramp-prefill"), 900.0, 900.0),
        ramp_constants("ramp-prefill", AZURE),
        (Role.MIXED,),
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("name", SCENES)
def test_a_recorded_row_gets_no_worse(name: str) -> None:
    found = compete(SCENES[name], 0.99, "ours").outcome
    if os.environ.get("SLUICE_WRITE_RECORDED"):
        rows = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        rows[name] = {
            "attainment": round(found.attainment, 4),
            "replica_hours": round(found.replica_hours, 3),
        }
        RECORDED.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    row = json.loads(RECORDED.read_text())[name]
    assert found.attainment >= row["attainment"] - ATTAINMENT_SLACK
    assert found.replica_hours <= row["replica_hours"] * HOURS_SLACK


@pytest.mark.process
def test_a_split_that_follows_the_load_keeps_more_than_any_that_does_not() -> None:
    """Prompts are most of the work at first, answers at last; 8 GPUs for both pools."""
    best = compete(SCENES["shift"], 0.99, "static").outcome
    found = compete(SCENES["shift"], 0.99, "ours").outcome
    assert found.attainment > best.attainment + 0.15
    assert found.peak_replicas <= 8
    assert found.changes < 25
