"""Which cases a run on a GPU begins, and what the next one goes on with."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernel_archive import ARCHIVE, FOLDERS, pack
from sluice_kernels.flashinfer_ahead import MANIFEST, VERSION, Manifest, Module

from e2e.gpu_runs import __main__ as gpu_runs
from e2e.gpu_runs.__main__ import Runner, figures, main, unpack_once
from e2e.gpu_runs.cases import LISTS, Case, UnknownCaseError, chosen
from e2e.gpu_runs.device import CudaDevice, NoDeviceError, cuda_devices, missing_modules
from e2e.gpu_runs.environment import ROOT, Environment
from e2e.gpu_runs.results import BUILT, Outcome, Setting, done, line_of, sources_digest
from e2e.gpu_runs.session import run_session

A, B, C = (Case(name, ("-c", name), 100) for name in "abc")
HERE = Setting("NVIDIA H200", "0123")


class Machine:
    """A clock, and cases that take their time."""

    def __init__(self, **cases: tuple[str, float]) -> None:
        self.now = 0.0
        self.cases = cases
        self.given: list[tuple[str, float]] = []

    def run(self, case: Case, seconds: float) -> Outcome:
        state, takes = self.cases[case.name]
        self.given.append((case.name, seconds))
        if takes > seconds:
            state, takes = "timed-out", seconds
        self.now += takes
        return Outcome(case.name, state, takes)


@pytest.mark.parametrize(
    ("seconds", "known", "takes", "expected", "given"),
    [
        # Time for all.
        (300, [], (50, 50, 50), ("abc", "", "", ""), [100, 100, 100]),
        # Done before.
        (300, ["b"], (50, 50, 50), ("ac", "", "", "b"), [100, 100]),
        # The last one gets what is left, and that is enough.
        (180, [], (60, 60, 50), ("abc", "", "", ""), [100, 100, 60]),
        # It is cut short by the end: the next run has it.
        (180, [], (60, 60, 70), ("ab", "", "c", ""), [100, 100, 60]),
        # Not begun any more.
        (110, [], (50, 50, 50), ("ab", "", "c", ""), [100, 60]),
        # Its own limit: it failed, and the others run.
        (400, [], (50, 150, 50), ("ac", "b", "", ""), [100, 100, 100]),
    ],
)
def test_a_run_does_what_there_is_time_for(
    seconds: float, known: list[str], takes: tuple[float, ...], expected: tuple[str, ...],
    given: list[float],
) -> None:  # fmt: skip
    machine = Machine(**{name: ("passed", time) for name, time in zip("abc", takes, strict=True)})
    session = run_session((A, B, C), known, (), seconds, machine.run, lambda: machine.now)
    found = (session.passed, session.failed, session.left, session.skipped)
    assert tuple("".join(names) for names in found) == expected
    assert [limit for _, limit in machine.given] == given
    assert machine.now <= seconds


def test_a_failure_keeps_no_other_case_from_running() -> None:
    machine = Machine(a=("failed", 5), b=("passed", 5), c=("failed", 5))
    session = run_session((A, B, C), [], (), 300, machine.run, lambda: machine.now)
    assert (session.passed, session.failed) == (("b",), ("a", "c"))
    assert session.message == "1 passed (b); 2 failed (a, c)"


def test_only_what_passed_with_these_sources_on_this_device_is_done() -> None:
    passed = Outcome("a", "passed", 1.0, [{"figure": "x", "value": 1}])
    lines = [
        line_of(passed, HERE),
        line_of(Outcome("b", "failed", 1.0), HERE),
        line_of(Outcome("c", "passed", 1.0), Setting("NVIDIA H100", "0123")),
        line_of(Outcome("c", "passed", 1.0), Setting("NVIDIA H200", "other")),
        line_of(Outcome("c", "passed", 1.0), Setting("NVIDIA H200", "0123", scale="0.02")),
        line_of(Outcome("c", "passed", 1.0), HERE)[:-9],
        "[1]",
    ]
    assert done(lines, HERE) == {"a"}


def test_the_digest_of_the_sources_follows_what_is_computed(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "uv.lock").write_text("1")
    source = tmp_path / "runtime" / "a.py"
    source.write_text("1")
    before = sources_digest(tmp_path)
    (tmp_path / "README.md").write_text("1")
    assert sources_digest(tmp_path) == before
    source.write_text("2")
    assert sources_digest(tmp_path) != before


@pytest.mark.parametrize("kind", LISTS)
def test_every_case_is_there_and_the_first_ones_fit_into_a_run(kind: str) -> None:
    cases = chosen(kind, [])
    assert len({case.name for case in cases}) == len(cases)
    assert sum(case.seconds for case in cases[:3]) <= 480
    for case in cases:
        module = case.words[1].replace(".", "/") + ".py"
        files = [word for word in case.words if word.endswith(".py")] or [module]
        assert all((ROOT / file).is_file() for file in files), case.name


def test_every_test_for_gpus_is_in_a_case() -> None:
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/gpu/test_*.py")}
    assert files
    assert files <= {word for case in LISTS["test"] for word in case.words}


def test_cases_are_chosen_by_name_in_the_order_of_the_list() -> None:
    first, second, *_ = chosen("bench", [])
    assert chosen("bench", [second.name, first.name]) == (first, second)
    with pytest.raises(UnknownCaseError, match="case nothing: allowed are overlap, "):
        chosen("bench", ["nothing"])


def test_figures_are_the_lines_of_the_report() -> None:
    line = json.dumps({"figure": "offline", "value": 3.0})
    assert list(figures(["warming up", line, '{"figure": "half', '{"other": 1}'])) == [
        {"figure": "offline", "value": 3.0}
    ]


@pytest.mark.parametrize("kind", LISTS)
def test_a_machine_without_a_gpu_is_told_in_one_line(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> list[CudaDevice]:
        def load(name: str) -> None:
            raise OSError(f"{name}: cannot open shared object file")

        return cuda_devices(load)  # type: ignore[arg-type]

    monkeypatch.setattr("e2e.gpu_runs.__main__.cuda_devices", absent)
    assert main([kind]) == 1
    assert capsys.readouterr().err == (
        "error: no CUDA device: libcuda.so.1: cannot open shared object file\n"
    )


class Driver:
    """As `libcuda.so.1`."""

    def __init__(self, count: int, code: int = 0) -> None:
        self.count, self.code = count, code

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuDeviceGetCount(self, count: object) -> int:
        count._obj.value = self.count  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetAttribute(self, number: object, attribute: int, index: int) -> int:
        number._obj.value = {75: 9, 76: 0}[attribute]  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetName(self, text: object, size: int, index: int) -> int:
        text.value = f"GPU {index}".encode()  # type: ignore[attr-defined]
        return 0


def test_devices_are_the_drivers() -> None:
    found = cuda_devices(lambda name: Driver(2))  # type: ignore[arg-type,return-value]
    assert found == [CudaDevice("GPU 0", 90), CudaDevice("GPU 1", 90)]
    for driver in (Driver(0), Driver(1, code=100)):
        with pytest.raises(NoDeviceError, match="no CUDA device"):
            cuda_devices(lambda name, driver=driver: driver)  # type: ignore[misc]


def test_cases_whose_kernels_were_not_built_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To compile them takes longer than a run has."""
    monkeypatch.setattr(gpu_runs, "cuda_devices", lambda: [CudaDevice("NVIDIA H200", 90)])
    monkeypatch.setattr(
        gpu_runs, "missing_modules", lambda _, case: [f"decode_{dim}" for dim in case.heads]
    )
    assert main(["bench", "steps", "offline", "--results", str(tmp_path / "results")]) == 1
    assert capsys.readouterr().err == (
        "refused: steps, offline: these modules of flashinfer are missing; scripts/gpu-kernels "
        "builds them ahead, --compile lets nvcc do it here, for minutes each\n  decode_128\n"
    )
    assert not (tmp_path / "results").exists()


def test_kernels_of_an_archive_are_unpacked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, cubin = (tmp_path / folder / "a" for folder in FOLDERS)
    for path in (library.parent / "norm" / "norm.so", cubin):
        path.parent.mkdir(parents=True)
        path.write_text("built")
    Manifest(VERSION, {"norm": Module((90,), "")}).write(library.parent)
    (cubin.parent / MANIFEST).write_text('{"cubins": {"a": 0}}')
    pack(tmp_path / ARCHIVE, tmp_path)
    shutil.rmtree(tmp_path / "kernels")
    unpack_once(tmp_path)
    assert cubin.read_text() == "built"
    cubin.write_text("built here, later")
    unpack_once(tmp_path)
    assert cubin.read_text() == "built here, later"
    (tmp_path / BUILT).unlink()
    (tmp_path / ARCHIVE).write_text("half of it")
    monkeypatch.setattr(gpu_runs, "ROOT", tmp_path)
    assert main(["bench", "steps"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / ARCHIVE}: ")


def test_what_runs_is_kept_and_what_is_refused_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_runs, "cuda_devices", lambda: [CudaDevice("NVIDIA H200", 90)])
    monkeypatch.setattr(gpu_runs, "missing_modules", lambda _, case: list(case.heads))
    monkeypatch.setattr(gpu_runs, "environment", lambda wheels: Environment(Path("/bin/echo")))
    results = tmp_path / "results.jsonl"
    assert main(["bench", "steps", "copies", "--results", str(results)]) == 1
    assert "1 passed (copies); 1 refused (steps)" in capsys.readouterr().err
    assert results.with_suffix(".log").read_text() == "# copies\n-m benchmarks.gpu.copies\n"


def test_modules_for_pages_of_8_bits_are_missed_where_a_case_reads_such_pages() -> None:
    other_architecture = 10
    without, reading = (
        missing_modules(other_architecture, Case("a", (), 1, ("128",), fp8))
        for fp8 in (False, True)
    )
    assert set(without) < set(reading)
    assert {"e4m3" in module for module in set(reading) - set(without)} == {True}


def test_cases_that_passed_elsewhere_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lent machine begins with an empty folder of results."""
    monkeypatch.setattr(gpu_runs, "cuda_devices", lambda: [CudaDevice("NVIDIA H200", 90)])
    monkeypatch.setattr(gpu_runs, "missing_modules", lambda *_: [])
    monkeypatch.setattr(gpu_runs, "environment", lambda wheels: Environment(Path("/bin/echo")))
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert main(["nine-minutes", "sampling", "kernels", "--results", str(first)]) == 0
    again = ["nine-minutes", "sampling", "kernels", "weights", "--before", str(first)]
    assert main([*again, "--results", str(second)]) == 0
    assert "1 passed (weights); 2 done before (sampling, kernels);" in capsys.readouterr().err


def test_making_the_environment_is_a_part_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def slow(wheels: Path | None) -> Environment:
        nonlocal now
        now += 530
        return Environment(Path("/bin/echo"))

    monkeypatch.setattr(gpu_runs, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(gpu_runs, "cuda_devices", lambda: [CudaDevice("NVIDIA H200", 90)])
    monkeypatch.setattr(gpu_runs, "environment", slow)
    assert main(["nine-minutes", "sampling", "--results", str(tmp_path / "results.jsonl")]) == 2
    assert "1 left for another run (sampling)" in capsys.readouterr().err


def test_a_case_that_is_cut_short_leaves_what_it_had_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """import signal; print('{"figure": "a", "value": 1}', flush=True); signal.pause()"""
    results = tmp_path / "results.jsonl"
    runner = Runner(Path(sys.executable), os.environ, HERE, results)
    outcome = runner(Case("slow", ("-c", script), 60), 1.0)
    assert (outcome.state, outcome.figures) == ("timed-out", [{"figure": "a", "value": 1}])
    first, last = map(json.loads, results.read_text().splitlines())
    assert (first["state"], last["state"]) == ("measured", "timed-out")
    assert first["figures"] == last["figures"]
    assert json.loads(capsys.readouterr().out)["figure"] == "a"
