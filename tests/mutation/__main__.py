"""Breaks one listed line at a time in a copy of the sources, and fails if no test notices.

`python -m tests.mutation [a package, or part of a name]`. Prints a line a mutation, then the
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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.mutation.every import EVERY
from tests.mutation.mutation import Mutation

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("runtime", "operator", "kernels", "tests", "e2e", "benchmarks")
"""The sources, the tests, and what these import."""
IMPORTED: Final = ("operator", "runtime", "kernels", ".")
LEVEL: Final = "not full and not gpu and not apiserver and not cluster"
OPTIONS: Final = ("-p", "no:cacheprovider", "-m", LEVEL, "--hypothesis-profile", "mutate")
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
    chosen = _chosen(wanted)
    if not chosen:
        print(f"no mutation is called {wanted}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(Path(folder))
        everything = {test for mutation in chosen for test in mutation.test_files}
        status, output = _run(copy, sorted(everything), LIMIT_OF_ALL_SECONDS)
        if status != 0:
            print(f"{output[-4000:]}\nthe tests fail on the sources as they are")
            return 1
        results = [_result(copy, mutation) for mutation in chosen]
    _report(results)
    return 0 if all(each.outcome == "caught" for each in results) else 1


def _chosen(wanted: str) -> list[Mutation]:
    of_package = [mutation for mutation in EVERY if mutation.area == wanted]
    return of_package or [mutation for mutation in EVERY if wanted in mutation.what]


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
        status, _ = _run(copy, mutation.test_files, LIMIT_SECONDS)
    finally:
        module.write_text(text)
    if status == 0:
        return "SURVIVED"
    return "caught" if status == FAILED else "BROKEN"


def _run(copy: Path, tests: Iterable[Path], limit_seconds: float) -> tuple[int, str]:
    """Exit status and output of the tests in the copy, up to the first that fails; tests that take
    too long have failed."""
    command = [sys.executable, "-m", "pytest", "-x", *OPTIONS, *map(str, tests)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in IMPORTED),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / ".hypothesis"),
    }
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"no end after {limit_seconds:.0f} s"
    return done.returncode, done.stdout


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
