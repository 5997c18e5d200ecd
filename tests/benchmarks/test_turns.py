"""Engines take turns fairly, and a peer that ends tells why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.turns import Measured, Run, in_turns, report_rounds


def recorder(seen: list[tuple[str, int]], name: str, seconds: float) -> Run:
    def run(number: int) -> Measured:
        seen.append((name, number))
        return Measured(100, seconds, seconds)

    return run


def test_each_engine_is_first_in_turn_and_one_that_runs_once_is_last() -> None:
    seen: list[tuple[str, int]] = []
    runs = {name: recorder(seen, name, 1.0) for name in ("ours", "slow", "theirs")}
    rounds = in_turns(runs, 2, once=["slow"])
    warm_up, counted = seen[:2], seen[2:]
    assert warm_up == [("ours", 2), ("theirs", 2)]
    assert counted == [("ours", 0), ("theirs", 0), ("theirs", 1), ("ours", 1), ("slow", 1)]
    assert {name: len(of) for name, of in rounds.items()} == {"ours": 2, "theirs": 2, "slow": 1}


def test_a_ratio_is_of_one_round(capsys: pytest.CaptureFixture[str]) -> None:
    paces = [Measured(100, seconds, seconds) for seconds in (1.0, 2.0, 4.0)]
    slower = [Measured(100, 2 * run.seconds, 3 * run.cpu_seconds) for run in paces]
    report_rounds("f", "ours", {"ours": paces, "theirs": slower, "once": slower[-1:]})
    printed = capsys.readouterr().out
    for name, unlike in (("theirs", 3), ("once", 1)):
        rest = f'"unit": "ours / {name}", "rounds": {unlike}, "least": '
        assert f'{{"figure": "f.ratio.{name}", "value": 2.0, {rest}2.0, "most": 2.0}}' in printed
        cpu = f'{{"figure": "f.ratio.{name}.per_cpu_second", "value": 3.0, {rest}3.0, "most": 3.0}}'
        assert cpu in printed


HEAD = "from asked import answer, workload\n"


@pytest.mark.parametrize(
    "script",
    ["raise SystemExit('the reason')", f"{HEAD}workload(); raise SystemExit('the reason')"],
    ids=["at start", "later"],
)
def test_a_peer_that_ends_tells_why(script: str) -> None:
    command = [sys.executable, "-c", script]
    with (
        pytest.raises(RuntimeError, match=r"peer: .*the reason"),
        environments.asked("peer", command, {"prompts": [1] * 100_000}, beside_scripts()) as run,
    ):
        run(0)


def test_a_peer_answers_each_number_whatever_its_libraries_print() -> None:
    script = f"{HEAD}w = workload()\nprint('50 %', end='')\nanswer(lambda n: lambda: n + w['by'])"
    command = [sys.executable, "-c", script]
    with environments.asked("peer", command, {"by": 10}, beside_scripts()) as run:
        assert [run(number)["tokens"] for number in (1, 2)] == [11, 12]


def beside_scripts() -> dict[str, str]:
    folder = Path(environments.__file__).parent
    return {**os.environ, "PYTHONPATH": str(folder)}
