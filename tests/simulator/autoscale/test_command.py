"""The command: tables, JSON, a picture, journals that are decided again, and what it refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sluice_autoscaler.journal import Journal
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.command import main, replay_bar
from sluice_simulator.autoscale.constants import AZURE, QueueTargets
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.grids import POLICIES, Candidate, Scene
from sluice_simulator.autoscale.outcome import outcome
from sluice_simulator.autoscale.policies.ours import Ours, settings_of
from sluice_simulator.autoscale.policy_comparison import compete, contest, play
from sluice_simulator.autoscale.shapes import FORMS, RAMPS, formed, ramp

from tests.simulator.autoscale.scenes import chats

SHORT = ["--ramp", "ramp-prefill", "--start", "1200", "--seconds", "240"]


@pytest.mark.process
def test_a_table_for_people_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "replay.svg"
    assert main([*SHORT, "--policy", "ours,keda,static", "--plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["ours", "keda", "static"]
    assert picture.read_text().count("<path") > 10


@pytest.mark.process
@pytest.mark.parametrize("pools", ["mixed", "two"])
def test_json_has_every_figure(pools: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--pools", pools, "--policy", "ours,keda,static", "-o", "json", "--jobs", "2"]
    assert main([*SHORT, *words, "--gpu-budget", "12"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows] == ["ours", "keda", "static"]
    for row in rows:
        assert 0 <= row["attained"] <= row["attainable"] <= 1
        assert row["peak_replicas"] <= 12
        assert row["ours_to_its"] == pytest.approx(rows[0]["replica_hours"] / row["replica_hours"])


@pytest.mark.process
def test_our_rule_is_given_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    """A second of work in the queue is what the promise leaves; twenty times less takes more."""
    hours = []
    for words in ([], ["--queue-seconds", "0.05"], ["--prefill-queue", "1"]):
        assert main([*SHORT, "--policy", "ours", "-o", "json", *words]) == 0
        hours.append(json.loads(capsys.readouterr().out)["replica_hours"])
    left_out, seconds, requests = hours
    assert left_out < min(seconds, requests)


@pytest.mark.process
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_bar_of_a_terminal_is_full_when_all_policies_are_done(jobs: int) -> None:
    trace, names = chats(60.0), ["ours", "static", "all-at-once"]
    scene = Scene(trace, replace(AZURE, max_replicas=3), [Role.MIXED])
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with replay_bar(scene, names, is_shown=True, console=screen) as replayed:
        assert replayed is not None
        contest(scene, names, jobs, replayed)
    assert "4 of at most 4 replays" in screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("is_terminal", "is_shown"), [(True, False), (False, True)])
def test_there_is_no_bar_for_a_program_or_in_a_log(is_terminal: bool, is_shown: bool) -> None:
    scene, file = Scene(chats(1.0), AZURE, [Role.MIXED]), io.StringIO()
    screen = Console(file=file, force_terminal=is_terminal)
    with replay_bar(scene, ["ours"], is_shown, screen) as replayed:
        assert replayed is None
    assert file.getvalue() == ""


def test_targets_are_those_of_a_spec() -> None:
    constants = replace(AZURE, targets=QueueTargets(0.5, 4, 6))
    settings = settings_of(constants, [Role.PREFILL, Role.DECODE])
    found = settings.queue_seconds, settings.prefill_queue, settings.decode_queue
    assert found == (0.5, 4, 6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "ours,best"], "--policy: 'best' is not allowed; allowed: ours, hpa"),
        (["--start", "99999"], "--start 99999: no request of ramp-prefill is in there"),
        (["--decode-queue", "4"], "--decode-queue: 4 is not allowed; allowed: with --pools two"),
        (["--plot", "replay.gif"], "a file that ends in .png or .svg"),
    ],
)
def test_what_cannot_be_used_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--ramp", "ramp-prefill", *words]) == 2
    assert said in capsys.readouterr().err


def journal_of_a_replay(path: Path) -> None:
    settings, journal = settings_of(AZURE, [Role.MIXED]), Journal()
    policy = Ours(settings, on_tick=lambda tick: journal.add(settings, tick, 1.7e9))
    AutoscaledFleet(chats(150.0), AZURE, policy, {Role.MIXED: 1}).run()
    path.write_text(journal.text())


def test_a_journal_is_decided_again_and_differences_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    journal_of_a_replay(path)
    assert main(["--journal", str(path)]) == 0
    assert capsys.readouterr().out.startswith("2023-11-14 22:13:20Z  ")
    first, *rest = path.read_text().splitlines()
    line = json.loads(first)
    line["decision"]["pools"]["mixed"]["desired"] = 63
    line["decision"]["message"] = "as many as there are"
    path.write_text("\n".join([json.dumps(line), *rest]))
    assert main(["--journal", str(path)]) == 0
    then, now = capsys.readouterr().out.splitlines()[:2]
    assert "as many as there are" in then
    assert now.strip().startswith("now")
    assert main(["--journal", str(path), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["alike"], told["then"]["pools"]["mixed"][1]) == (False, 63)


@pytest.mark.parametrize(
    ("text", "said"), [("", "holds no decision"), ("{}\n", "line 1: settings")]
)
def test_what_is_no_journal_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    assert main(["--journal", str(path)]) == 2
    path.write_text(text)
    assert main(["--journal", str(path)]) == 2
    missing, wrong = capsys.readouterr().err.splitlines()
    assert "No such file" in missing
    assert said in wrong


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_the_same_requests_at_other_times(form: str) -> None:
    trace = chats(400.0)
    bent = formed(trace, form)
    assert [r.prompt_tokens for r in bent.requests] == [r.prompt_tokens for r in trace.requests]
    times = [request.arrival_seconds for request in bent.requests]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(trace.seconds, rel=1e-3)
    assert times != [request.arrival_seconds for request in trace.requests]


def test_ramps_have_the_rates_of_their_stages() -> None:
    for name, shape in RAMPS.items():
        requests, began = ramp(name, seed=3).requests, 0.0
        for stage in shape.stages:
            ended = began + stage.seconds
            found = [r for r in requests if began <= r.arrival_seconds < ended]
            assert len(found) == pytest.approx(stage.seconds * stage.rate, rel=0.25)
            assert {r.prompt_tokens for r in found} == {stage.prompt_tokens}
            began = ended


def test_the_best_of_a_ladder_is_what_trying_all_would_find() -> None:
    scene = Scene(chats(100.0), replace(AZURE, max_replicas=8), [Role.MIXED])
    row = compete(scene, 0.99, "static")
    every = [outcome(play(scene, each), scene.constants) for (each,) in _single_steps(scene)]
    good = [found.replica_hours for found in every if found.attainment >= 0.99]
    assert row.outcome.replica_hours == min(good)
    assert len(row.tried) < len(every)


def _single_steps(scene: Scene) -> Iterator[list[Candidate]]:
    return ([candidate] for ladder in POLICIES["static"](scene) for candidate in ladder)
