"""Breaks one listed line at a time in a copy of the sources, and fails if no test notices.

`python -m tests.mutation [part of a name, or a package]`. Prints a line a mutation, then the
survivors and one line a package; the exit status is 1 if a mutation was not caught, or if its line
is not there any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.mutation.every import EVERY
from tests.mutation.mutation import Mutation

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("runtime", "operator", "kernels", "tests", "e2e", "manifests", "docs")
"""The sources, the tests, and what these read."""
IMPORTED: Final = ("operator", "runtime", "kernels", ".")
LEVEL: Final = "not (gpu or process or apiserver or cluster or full)"
LIMIT_SECONDS: Final = 90
"""A mutant that runs longer hangs, which is noticed too."""
LIMIT_OF_ALL_SECONDS: Final = 1800
FAILED: Final = 1
"""Exit status of pytest where tests ran and some did not pass."""

Outcome = Literal["caught", "SURVIVED", "STALE", "BROKEN"]
"""STALE: the line is not there, or several times. BROKEN: no test could be run."""


@dataclass(frozen=True)
class Result:
    """What became of one mutation."""

    mutation: Mutation
    outcome: Outcome
    seconds: float


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [each for each in EVERY if wanted in each.what or wanted == each.area]
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(Path(folder))
        everything = tuple(sorted({test for mutation in chosen for test in mutation.test_files}))
        if _run(copy, everything, LIMIT_OF_ALL_SECONDS, to_the_end=True) != 0:
            print("the tests fail on the sources as they are")
            return 1
        results = [_result(copy, mutation) for mutation in chosen]
    _report(results)
    return 0 if results and all(each.outcome == "caught" for each in results) else 1


def _copied(folder: Path) -> Path:
    """Sources and tests in `folder`, which the child processes import instead of ours."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _result(copy: Path, mutation: Mutation) -> Result:
    began = time.monotonic()
    outcome = _outcome(copy, mutation)
    seconds = time.monotonic() - began
    print(f"{outcome:9} {mutation.area}: {mutation.what} ({seconds:.0f} s)", flush=True)
    return Result(mutation, outcome, seconds)


def _outcome(copy: Path, mutation: Mutation) -> Outcome:
    module = copy / mutation.source
    text = module.read_text()
    if text.count(mutation.before) != 1:
        return "STALE"
    module.write_text(text.replace(mutation.before, mutation.after))
    try:
        status = _run(copy, mutation.test_files, LIMIT_SECONDS)
    finally:
        module.write_text(text)
    if status == 0:
        return "SURVIVED"
    return "caught" if status == FAILED else "BROKEN"


def _run(copy: Path, tests: Sequence[Path], limit_seconds: float, to_the_end: bool = False) -> int:
    """The exit status of the tests in the copy; who takes too long has failed. `to_the_end`: past
    the first failure, and what failed is shown."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", LEVEL]
    command += [
        "--hypothesis-profile",
        "unshrunk",
        *([] if to_the_end else ["-x"]),
        *map(str, tests),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in IMPORTED),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / ".hypothesis"),
        "CI": "true",  # Hypothesis draws the same examples in every run
    }
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        return FAILED
    if to_the_end and done.returncode:
        print(done.stdout[-4000:])
    return done.returncode


def _report(results: Sequence[Result]) -> None:
    for result in results:
        if result.outcome != "caught":
            print(f"{result.outcome:9} {result.mutation.source}: {result.mutation.what}")
    for area in sorted({result.mutation.area for result in results}):
        print(_total(area, [each for each in results if each.mutation.area == area]))
    print(_total("all", results))


def _total(name: str, results: Sequence[Result]) -> str:
    caught = sum(result.outcome == "caught" for result in results)
    seconds = sum(result.seconds for result in results)
    return f"{name:12} {caught:3} of {len(results):3} caught, {seconds:5.0f} s"


if __name__ == "__main__":
    sys.exit(main())
