"""When a roll-out is done, has stopped or is on its way."""

from __future__ import annotations

import pytest
from sluice_operator.cli.rollout.progress import as_text, bar, bars, progress_of
from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import service

MIXED: Manifest = {
    "metadata": {"name": "chat-mixed"},
    "spec": {"role": "mixed"},
    "status": {
        "revisions": [
            {"name": "bbb", "replicas": 2, "ready": 0, "current": True},
            {"name": "aaa", "replicas": 2, "ready": 2, "current": False},
        ]
    },
}


def told(seen: int = 1, **conditions: str) -> Manifest:
    """A service of generation 1; conditions as `Status/Reason`."""
    found = [
        {"type": kind, "status": status, "reason": reason, "message": "in words."}
        for kind, (status, _, reason) in ((k, v.partition("/")) for k, v in conditions.items())
    ]
    return service() | {"status": {"observedGeneration": seen, "conditions": found}}


@pytest.mark.parametrize(
    ("item", "state"),
    [
        (service(), "Waiting"),
        (told(0, Updated="True/AllReady"), "Waiting"),
        (told(Updated="True/AllReady"), "Done"),
        (told(Updated="True/ScaledToZero"), "Done"),
        (told(Updated="False/RollingOut", Stalled="False/NotStalled"), "Waiting"),
        (told(Updated="False/ModelLoadFailed", Stalled="True/ModelLoadFailed"), "Stopped"),
        (told(Updated="False/ImagePullBackOff", Progressing="False/RolloutHalted"), "Stopped"),
        (told(Updated="False/Paused", Progressing="False/Paused"), "Waiting"),
        (told(Updated="False/RollingOut", Progressing="True/CanaryStep"), "Canary"),
        (told(Updated="False/RollingOut", Progressing="True/CanaryStalled"), "Canary"),
        (told(Updated="False/RollingOut", Progressing="True/CanaryWaits"), "Canary"),
        (told(Updated="False/CanaryAsleep", Progressing="True/CanaryAsleep"), "Waiting"),
    ],
)
def test_what_the_conditions_mean(item: Manifest, state: str) -> None:
    assert progress_of(item).state == state


def test_a_paused_service_is_said_to_be_paused_whatever_its_pools_report() -> None:
    item = told(Updated="False/RollingOut", Progressing="False/Paused")
    assert progress_of(item).line == "Waiting: Paused: in words."


def test_engines_are_shown_by_revision() -> None:
    item = told(Updated="False/RollingOut")
    item["status"]["rollout"] = {"reason": "RollingOut", "message": "so it goes."}
    assert as_text(item, [MIXED]).splitlines() == [
        "Waiting: RollingOut: in words.",
        "  pool   revision          engines  ready",
        "  mixed  bbb       wanted  2        0",
        "  mixed  aaa       former  2        2",
        "Plan: RollingOut: so it goes.",
    ]


@pytest.mark.parametrize("message", ["in words.", "so it goes."])
def test_the_plan_of_a_stopped_roll_out_is_shown_unless_its_line_has_it(message: str) -> None:
    item = told(Updated="False/RolloutHalted", Progressing="False/RolloutHalted")
    item["status"]["rollout"] = {"reason": "RolloutHalted", "message": message}
    lines = as_text(item, []).splitlines()
    assert lines[0] == "Stopped: RolloutHalted: in words."
    assert lines[1:] == ([] if message == "in words." else ["Plan: RolloutHalted: so it goes."])


def test_a_pool_that_lacks_engines_has_a_bar() -> None:
    item = told(Updated="False/RollingOut")
    assert list(bars(item)) == []
    item["status"]["pools"] = {
        "prefill": {"desiredReplicas": 4, "updatedReplicas": 1},
        "decode": {"desiredReplicas": 2, "updatedReplicas": 2},
        "mixed": {"desiredReplicas": 0, "updatedReplicas": 0},
    }
    assert list(bars(item)) == [f"  prefill  {'━' * 8}{'·' * 24} 1 of 4 ready"]


def test_two_lines_of_a_bar_are_as_long_as_their_sum() -> None:
    assert bar(0.29, 10, 0.11) == "━━──······"
    assert bar(0.7, 10, 0.3) == "━━━━━━━───"
    assert bar(0.29, 10, 0.1) == "━━─·······"
