"""`python -m sluice_simulator`, as a person calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sluice_contract.config.engine import EngineConfig, ModelRef, SloTargets
from sluice_runtime.scheduler.policies import POLICIES
from sluice_simulator.cli import main
from sluice_simulator.configuration import ALL, NO_MODEL, policies_of

from tests.simulator.test_trace_files import AZURE, MOONCAKE


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "talk.jsonl"
    path.write_text(MOONCAKE)
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"model": {"uri": "dummy://x"}, "chunkSize": 128}))
    return path


def test_a_table(trace: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", trace, "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert "talk: 2 requests in 1.5 s (1.33/s), 1,112 tokens in, 12 out" in out
    # 786,432 tokens are 768 times 1,024.
    assert "h200-llama3-8b · pool 786,432 tokens · chunk 128, mixed · at most 768 running" in out
    assert "fcfs · exact mode" in out
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert rows["TTFT"].count("ms") == 5
    assert "2 finished, 0 failed" in rows["requests"]
    assert "chunk cuts" in rows


def test_some_keys_are_enough(trace: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(json.dumps({"chunkSize": 128}))
    assert main(["--trace", trace, "--config", str(config)]) == 0
    assert "chunk 128, mixed" in capsys.readouterr().out
    config.write_text(json.dumps({"chunkSize": 128, "model": {"name": "x"}}))
    assert main(["--trace", trace, "--config", str(config)]) == 2
    assert "model.uri" in capsys.readouterr().err


def test_json_has_every_figure(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", trace, "-o", "json"]) == 0
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (found["trace"], found["policy"], found["finished"]) == ("talk", "fcfs", 2)
    assert found["ttft"]["count"] == 2
    assert found["output_tokens"] == 12


def test_a_part_of_an_azure_trace_at_another_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.csv"
    path.write_text(AZURE)
    assert main(["--trace", str(path), "--seconds", "0.05", "--rate", "2", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] == 1


def test_a_workload_instead_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workload", "rag", "--seconds", "5"]) == 0
    assert "rag-0: " in capsys.readouterr().out


def test_policies_side_by_side_with_urgent_requests_and_tenants(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--workload", "rag", "--seconds", "5", "--tenants", "3", "--urgent", "0.2"]
    assert main([*words, "--policy", "fcfs,priority,round-robin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if line.startswith("policy")]
    assert "urgent TTFT p50" in head
    assert "small tenants p50" in head
    assert [line.split()[0] for line in lines[-3:]] == ["fcfs", "priority", "round-robin"]


@pytest.mark.process
def test_every_policy_of_the_registry_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workload", "rag", "--seconds", "1", "--policy", "all", "-o", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["policy"] for run in found] == [name for name in POLICIES if name != "slack"]
    assert len({run["output_tokens"] for run in found}) == 1


@pytest.mark.process  # it takes seconds to import what draws
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot(suffix: str, trace: str, tmp_path: Path) -> None:
    plot = tmp_path / f"out{suffix}"
    assert main(["--trace", trace, "--plot", str(plot)]) == 0
    head = plot.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in plot.read_bytes()
    assert plot.stat().st_size > 5_000


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("slo", [None, SloTargets(ttft_milliseconds=500)])
def test_all_policies_are_those_that_the_configuration_may_have(
    caches: bool, slo: SloTargets | None
) -> None:
    config = EngineConfig(model=ModelRef(uri=NO_MODEL), prefix_cache=caches, slo=slo)
    without = set(POLICIES) - set(policies_of(ALL, config))
    assert without == (set() if caches else {"lpm", "dfs-weight"}) | (set() if slo else {"slack"})
    assert policies_of(None, config) == ["slack" if slo else "fcfs"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "best"], "--policy: 'best' is not allowed; allowed: fcfs"),
        (["--policy", ""], "--policy: '' is not allowed; allowed: fcfs"),
        (["--cost", "abacus"], "--cost: 'abacus' is not allowed; allowed: a preset"),
        (
            ["--config", "none.json"],
            '--config: "none.json" is not allowed; allowed: a readable file',
        ),
        (["--plot", "out.pdf"], "--plot: 'out.pdf' is not allowed; allowed: a file that ends in"),
        (["--plot", "/none/a.png"], "--plot: '/none/a.png' is not allowed; allowed: a file in a"),
        (["--plot", "/proc/self/stat/a.png"], "allowed: a file in a folder that is there"),
        (["--start", "9"], "--start 9: no request of talk is in there; allowed: a part of its 2 s"),
    ],
)
def test_what_cannot_be_used_is_named(
    words: list[str], says: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--trace", trace, *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"tensorParallelSize": 4}, "tensorParallelSize: 4 is not allowed; allowed: 1"),
        ({"kvTransfer": {}}, "kvTransfer"),
        ({"speculation": {"method": "NGram"}}, "speculation"),
        ({"hostCache": {"memory": "1Gi"}}, "hostCache"),
        ({"contextLength": 10_000_000}, "contextLength: 10000000 is not allowed"),
        ({"chunkSize": 8}, "chunkSize"),
        (
            {"chunkSize": -1, "slo": {"itlMilliseconds": 50}},
            "chunkSize: -1 is not allowed; allowed: at least pageSize, as slo.itlMilliseconds",
        ),
        ({"mixedChunk": False, "slo": {"itlMilliseconds": 50}}, "mixedChunk: false is not allowed"),
    ],
)
def test_a_setting_that_cannot_be_simulated_is_refused(
    setting: dict[str, object],
    says: str,
    trace: str,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config.write_text(json.dumps({"model": {"uri": "dummy://x"}} | setting))
    assert main(["--trace", trace, "--config", str(config)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{config}: ")
    assert says in told


@pytest.mark.process  # as it draws
@pytest.mark.parametrize("policies", ["fcfs", "fcfs,lpm"])
def test_when_every_request_fails_there_are_failures_first_and_no_times(
    policies: str, trace: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps({"model": {"uri": "dummy://x"}, "contextLength": 16}))
    words = ["--trace", trace, "--config", str(config), "--plot", str(tmp_path / "a.svg")]
    assert main([*words, "--policy", policies]) == 1
    out = capsys.readouterr().out
    assert out.index("2 of 2 requests failed; the first: the prompt has ") < out.index("TTFT")
    times = next(line for line in out.splitlines() if line.startswith(("TTFT", "lpm  ")))
    assert times.split()[1:6] == ["–"] * 5


def test_another_output_is_refused(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--trace", trace, "-o", "yaml"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "-o/--output: invalid choice: 'yaml' (choose from " in said
    assert "json" in said


@pytest.mark.process
def test_a_missing_dependency_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from sluice_simulator.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs msgspec; it comes with the extra `simulate`: in a checkout" in done.stderr
    assert "pip install '.[operator,simulate]'" in done.stderr


def test_a_plot_without_matplotlib_names_the_extra(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--trace", trace, "--plot", "out.png"]) == 2
    assert "--plot: needs matplotlib" in (said := capsys.readouterr().err)
    assert "pip install '.[operator,simulate]'" in said


@pytest.mark.process
def test_a_reader_who_has_seen_enough_ends_it_quietly(trace: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sluice_simulator", "--trace", trace]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
