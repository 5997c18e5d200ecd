"""What `sluice rollout status` prints while it waits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator

import pytest
from sluice_operator.cli.rollout import command
from sluice_operator.kube.kinds import Manifest

from tests.operator.cli.rollout.test_progress import told


class Canaries:
    """A service with the changes of a canary's status."""

    def __init__(self, *conditions: dict[str, str]) -> None:
        self._states = [told(1, **each) for each in conditions]

    async def service(self) -> Manifest:
        return self._states[0]

    async def states(self) -> AsyncGenerator[Manifest, None]:
        for item in self._states:
            yield item

    async def pools(self) -> tuple[Manifest, ...]:
        return ()

    async def revisions(self) -> tuple[Manifest, ...]:
        return ()


BEHIND = {"Updated": "False/RollingOut"}
JUDGED = BEHIND | {"Progressing": "True/CanaryStep"}


@pytest.mark.parametrize(
    ("end", "status", "line"),
    [
        ({"Updated": "True/AllReady"}, 0, "Done: AllReady"),
        (BEHIND | {"Progressing": "True/CanaryWaits"}, 0, "Canary: CanaryWaits"),
        (dict.fromkeys(BEHIND | JUDGED, "False/CanaryAsleep"), 0, "Waiting: CanaryAsleep"),
        (BEHIND | {"Progressing": "True/CanaryStalled"}, 1, "Canary: CanaryStalled"),
        (BEHIND | {"Progressing": "False/CanaryWorse"}, 1, "Stopped: CanaryWorse"),
        (BEHIND | {"Progressing": "False/CanaryLate"}, 1, "Stopped: CanaryLate"),
        (BEHIND | {"Progressing": "False/CanaryAborted"}, 1, "Stopped: CanaryAborted"),
    ],
)
async def test_a_judged_canary_is_waited_for_until_it_is_over_sleeps_or_needs_a_person(
    end: dict[str, str], status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = Canaries(BEHIND, JUDGED, end, {"Updated": "True/Later"})
    options = argparse.Namespace(timeout=0, watch=True, name="chat")
    assert await command._status(changes, options) == status  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    waiting = ["Waiting: RollingOut", "Canary: CanaryStep"]
    assert [each.removesuffix(": in words.") for each in lines] == [*waiting, line]


@pytest.mark.parametrize(("state", "status"), [(JUDGED, 0), (BEHIND, 0)])
async def test_without_a_wait_a_roll_out_on_its_way_is_no_failure(
    state: dict[str, str], status: int
) -> None:
    options = argparse.Namespace(timeout=0, watch=False, name="chat")
    assert await command._status(Canaries(state), options) == status  # type: ignore[arg-type]


class Changes:
    """A service of which one of two engines is ready, and then both."""

    async def states(self) -> AsyncGenerator[Manifest, None]:
        for ready, updated in ((0, "False/Starting"), (1, "False/Starting"), (2, "True/AllReady")):
            item = told(Updated=updated)
            item["status"]["pools"] = {"mixed": {"desiredReplicas": 2, "updatedReplicas": ready}}
            yield item

    async def pools(self) -> tuple[Manifest, ...]:
        return ()

    async def revisions(self) -> tuple[Manifest, ...]:
        return ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["promote", "chat", "--f"], "unrecognized arguments: --f"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_an_option_is_written_in_full_and_a_missing_command_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.run(words)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("is_terminal", "bars"), [(True, 2), (False, 0)])
async def test_in_a_terminal_each_change_has_a_bar(
    is_terminal: bool,
    bars: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    options = argparse.Namespace(timeout=0, watch=True, name="chat")
    assert await command._status(Changes(), options) == 0  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert sum("━" in line or "·" in line for line in lines) == bars
    assert lines[-1] == "Done: AllReady: in words."
