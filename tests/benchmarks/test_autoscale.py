"""The benchmark of scaling: which scenes there are, what its table says, and what is met."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale import fleet
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.grids import Scene, plan_candidate
from sluice_simulator.autoscale.outcome import Outcome
from sluice_simulator.autoscale.policies.policy import Plan
from sluice_simulator.autoscale.policy_comparison import ComparisonRow, FairScene
from sluice_simulator.traces.request import Trace, TraceRequest

from benchmarks.autoscale import compiled, plans, report, targets
from benchmarks.autoscale.command import main
from benchmarks.autoscale.measure import Result
from benchmarks.autoscale.scenes import HALVES, SHIFT, half_of, scenes
from benchmarks.autoscale.streams import STREAMS, stream_trace, weibull_shape
from tests.simulator.autoscale.scenes import chats

ROLES = (Role.MIXED,)
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


def outcome(attainment: float, hours: float, changes: int = 0) -> Outcome:
    return Outcome(100, attainment, 1.0, hours, 0.1, 0.2, 0.1, 3, changes, regretted=changes // 5)


def row(policy: str, *outcomes: tuple[str, Outcome], reached: bool = True) -> ComparisonRow:
    """The first outcome is the best."""
    scene = Scene(chats(3600.0, 0.01), AZURE, ROLES)
    label, best = outcomes[0]
    return ComparisonRow(policy, plan_candidate(scene, label, {}), best, outcomes, reached)


def result(
    name: str, rows: Mapping[str, ComparisonRow], boot_seconds: float = 30.0, reachable: float = 1.0
) -> Result:
    constants = replace(AZURE, boot_seconds=boot_seconds)
    hour = Trace(name, (TraceRequest(0.0, 1, 1), TraceRequest(3600.0, 1, 1)))
    return Result(name, FairScene(Scene(hour, constants, ROLES), reachable), rows)


def results(attainment: float, hours: float, changes: int = 10) -> list[Result]:
    """An hour on which the plan needs 4 h, and a fixed size 5 h."""
    rows = {
        "ours": row("ours", ("untuned", outcome(attainment, hours, changes))),
        "hpa": row("hpa", ("a", outcome(0.99, 8.0)), ("b", outcome(0.98, 2.0))),
        "keda-tuned": row("keda-tuned", ("a", outcome(0.9, 6.0)), reached=False),
        "keda": row("keda", ("", outcome(0.5, 3.0))),
        "static": row("static", ("5", outcome(0.99, 5.0))),
        "plan": row("plan", ("", outcome(0.99, 4.0))),
    }
    return [result("azure-conv", rows), result("azure-conv", rows, boot_seconds=90.0)]


def words(found: list[Result]) -> list[str]:
    singles = [targets.single_setting(policy, found[:1]) for policy in targets.TUNED]
    return [line.split("**")[1] for line in targets.verdicts(found, singles)]


def test_targets_that_are_met_and_missed() -> None:
    """KEDA keeps no scene, so its hours say nothing; nor do ours where the share is missed."""
    assert words(results(0.995, 4.0)) == [*["met"] * 7, "not judged"]
    late = ["missed", "missed", *["not judged"] * 3, "met", *["not judged"] * 2]
    assert words(results(0.98, 4.0)) == late
    dear = words(results(0.995, 6.5, changes=21))
    assert dear == ["met", "met", *["missed"] * 5, "not judged"]


def test_a_share_that_nobody_reaches_is_not_demanded() -> None:
    usual, long = results(0.98, 4.0)
    unreachable = [replace(each, fair=replace(each.fair, reachable=0.99)) for each in (usual, long)]
    assert words(unreachable)[:2] == ["not judged"] * 2


def test_a_single_setting_keeps_the_goal_on_most_scenes_and_then_is_cheap() -> None:
    usual, _ = results(0.995, 4.0)
    single = targets.single_setting("hpa", [usual])
    assert (single.label, single.kept, single.scenes) == ("a", 1, 1)
    assert single.hours_by_ours == pytest.approx(2.0)


def test_the_table_has_a_row_a_scene() -> None:
    found = results(0.995, 4.4)
    head, _, line = report.table(found)
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert cells["| scene"] == "| Azure, conversations"
    assert cells["ours: good"] == "99.50 %"
    assert cells["keda"] == "(6.00: 90 %)"
    assert cells["ours ÷ plan"] == "1.10"
    assert (cells["half"], cells["changes an hour"], cells["undone"]) == ("choosing", "10", "2")
    assert next(report.ours_table(found[1:])).startswith("| scene |")
    assert list(report.ours_table(found))[-1] == (
        "| azure-conv | choosing | 90 s | 99.50 % | 4.40 | 10 | 2 |"
    )
    assert report.title("ramp-decode-two-pools") == "ramp 256/4,096, in two pools"


def test_scenes_are_those_of_the_folder_and_ramps(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(CSV)
    assert [name for name, _ in scenes(tmp_path, "own")] == ["own"]
    ramps = [name for name, _ in scenes(tmp_path, "ramp")]
    assert len(ramps) == 6
    assert SHIFT not in ramps
    assert [name for name, _ in scenes(tmp_path, SHIFT)] == [SHIFT]


def test_half_of_the_streams_choose_constants_and_the_others_judge_them(tmp_path: Path) -> None:
    chosen = [name for name in STREAMS if half_of(name) == HALVES[0]]
    assert len(chosen) == len(STREAMS) / 2
    assert [name for name, _ in scenes(tmp_path, "gamma-0.5", "judging")] == ["gamma-0.5"]
    assert not list(scenes(tmp_path, "gamma-0.5", "choosing"))


@pytest.mark.parametrize("variation", [0.5, 1.0, 2.0, 6.0])
def test_gaps_of_a_stream_vary_as_their_law_says(variation: float) -> None:
    shape = weibull_shape(variation)
    mean, square = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    assert math.sqrt(square - mean * mean) / mean == pytest.approx(variation)


def test_a_stream_has_its_rate_and_the_same_requests_each_time() -> None:
    trace = stream_trace("gamma-0.5")
    gaps = [after - before for before, after in pairwise(r.arrival_seconds for r in trace.requests)]
    mean = statistics.fmean(gaps)
    assert 1 / mean == pytest.approx(STREAMS["gamma-0.5"].rate, rel=0.02)
    assert statistics.pstdev(gaps) / mean == pytest.approx(0.5, rel=0.03)
    median = statistics.median(request.prompt_tokens for request in trace.requests)
    assert median == pytest.approx(STREAMS["gamma-0.5"].prompt_tokens, rel=0.05)
    assert stream_trace("gamma-0.5") == trace


def test_stored_plans_can_be_replayed() -> None:
    for boots in json.loads(plans.FILE.read_text()).values():
        for roles in boots.values():
            for role, steps in roles.items():
                seconds = [second for second, _ in steps]
                assert seconds == sorted(set(seconds))
                assert min(engines for _, engines in steps) >= 1
                assert Plan({Role(role): steps}).engines(Role(role), 1e6) == steps[-1][1]


def test_a_plan_that_is_stored_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "FILE", tmp_path / "plans.json")
    assert plans.stored("own", 30.0) is None
    plans.store("own", 30.0, {Role.MIXED: ((0.0, 2), (10.0, 3))})
    plans.store("own", 90.0, {Role.MIXED: ((0.0, 4),)})
    assert plans.stored("own", 30.0) == {Role.MIXED: [(0, 2), (10, 3)]}
    assert plans.stored("own", 90.0) == {Role.MIXED: [(0, 4)]}


@pytest.mark.process
def test_a_plan_is_searched_where_a_stored_one_does_not_keep_its_share() -> None:
    found = FairScene(Scene(chats(60.0, 2.0), replace(AZURE, max_replicas=8), ROLES), 1.0)
    poor: plans.Plans = {Role.MIXED: ((0.0, 1),)}
    searched = plans.plan_row(found, poor, 0.2)
    assert searched.reached
    again = plans.plan_row(found, plans.plans_of(searched), None)
    assert again.outcome == searched.outcome


@pytest.mark.process
def test_one_command_prints_the_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "SEARCH_SECONDS", 0.2)
    minute = [f"2023-11-16 18:15:{second}.0,374,44" for second in range(10, 60)]
    (tmp_path / "own.csv").write_text("\n".join([CSV.splitlines()[0], *minute, ""]))
    words = ["--traces", str(tmp_path), "--only", "own", "--jobs", "1"]
    main([*words, "--half", "judging", "--ours"])
    assert "| own | judging | 30 s | 100.00 % |" in capsys.readouterr().out
    main([*words, "--plots", str(tmp_path), "--json", str(tmp_path / "figures")])
    text = capsys.readouterr().out
    assert "| own | judging | 100.0 % |" in text
    assert "- hpa, the cheapest single setting" in text
    assert len((tmp_path / "figures").read_text().splitlines()) == 8
    picture = (tmp_path / "own.svg").read_text()
    assert "plan in hindsight" in picture
    assert len(picture) < 60_000


def test_the_compiled_fleet_is_made_anew_when_what_it_imports_changes() -> None:
    sources = (Path(fleet.__file__).with_name(name).read_text() for name in compiled.MODULES)
    imported = {
        name for text in sources for name in re.findall(r"^from sluice_([\w.]+)", text, re.M)
    }
    folders = tuple(folder.replace("/", ".") for folder in compiled.IMPORTED)
    assert imported
    assert [name for name in imported if not name.startswith(folders)] == []
