"""What a dry run shows of a run on a GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kernel_archive import ARCHIVE, FOLDERS

from e2e.gpu_runs.cases import Case
from e2e.gpu_runs.dry_run import CARRIED_MIB, WHEELS, dry_run
from e2e.gpu_runs.environment import ROOT

CUBINS = FOLDERS[-1]
A, B = (Case(name, ("-c", name), 100) for name in "ab")


def repository(folder: Path) -> Path:
    """A checkout with one source of 1 MiB and all that is carried beside it."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / ".gitignore").write_text(f"ignored\n{CUBINS}\n")
    for name in ("source", "ignored/file", f"{WHEELS}/a.whl", f"{CUBINS}/a.cubin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"0" * 2**20)
    return folder


def test_a_dry_run_shows_the_cases_what_is_carried_and_that_nothing_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.gpu_runs.dry_run.missing_modules", lambda *_: [])
    assert dry_run((A, B), 540, root=repository(tmp_path)) == 0
    assert (
        capsys.readouterr().out
        == """\
at most 540 s; a repeated run goes on with the cases that are left:
   100 s  a
   100 s  b
carried:
    1.0 MiB  sources
    1.0 MiB  gpu-wheels
    0.0 MiB  kernels/sluice_kernels/flashinfer_built
    1.0 MiB  kernels/sluice_kernels/triton/built
    3.0 MiB of at most 64
missing:
  nothing
"""
    )


def test_an_archive_of_kernels_is_carried_instead_of_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.gpu_runs.dry_run.missing_modules", lambda *_: [])
    (repository(tmp_path) / ARCHIVE).write_bytes(b"0" * 2**19)
    assert dry_run((A,), 540, root=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:7] == [
        "    1.0 MiB  sources",
        "    1.0 MiB  gpu-wheels",
        f"    0.5 MiB  {ARCHIVE}",
        "    2.5 MiB of at most 64",
    ]


def test_a_dry_run_names_what_is_missing_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"a": ["norm", "decode"], "b": ["norm"]}
    module = "e2e.gpu_runs.dry_run.missing_modules"
    monkeypatch.setattr(module, lambda _, case: missing[case.name])
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert dry_run((A, B), 540, Path("wheels"), tmp_path) == 1
    _, _, said = capsys.readouterr().out.partition("missing:\n")
    assert said.splitlines() == [
        "  wheels/*.whl: scripts/gpu-wheels wheels downloads them",
        f"  {CUBINS}/*.cubin: scripts/gpu-kernels compiles them",
        "  norm, for a, b",
        "  decode, for a",
    ]


def test_a_dry_run_fails_where_too_much_would_be_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.gpu_runs.dry_run.missing_modules", lambda *_: [])
    others_mib = 4
    large = repository(tmp_path) / WHEELS / "large.whl"
    with large.open("wb") as file:
        file.truncate((CARRIED_MIB - others_mib) << 20)
    assert dry_run((A,), 540, root=tmp_path) == 0
    with large.open("ab") as file:
        file.truncate(CARRIED_MIB << 20)
    assert dry_run((A,), 540, root=tmp_path) == 1


def made(*words: str) -> subprocess.CompletedProcess[str]:
    """What make would run. `RESULTS`, which the test stages share in CI, is not passed on."""
    command = ["make", "--no-print-directory", "--dry-run", *words]
    env = {name: value for name, value in os.environ.items() if name != "RESULTS"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_make_shows_the_nine_minutes_and_asks_for_a_folder_of_results() -> None:
    assert made("gpu-nine-minutes", "DRY=1").stdout.split()[-2:] == ["nine-minutes", "--dry-run"]
    ran = " ".join(made("gpu-nine-minutes", "RESULTS=out", "SECONDS=240").stdout.split())
    assert ran.endswith("nine-minutes --results out/nine-minutes.jsonl --seconds 240")
    assert "RESULTS=FOLDER" in made("gpu-nine-minutes").stderr


def test_make_takes_the_folder_of_the_test_stages_for_no_file_of_results() -> None:
    assert "--results" not in made("test-gpu").stdout
    assert made("test-gpu", "RESULTS=out").stdout.split()[-2:] == ["--results", "out"]
