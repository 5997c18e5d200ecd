"""What `sluice rollout status` prints while it waits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator

import pytest
from sluice_operator.cli.rollout import command
from sluice_operator.kube.kinds import Manifest

from tests.operator.cli.rollout.test_progress import told


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
