"""Breaks one listed line at a time in a copy of the sources, and fails if no test notices.

`python -m tests.mutation [part of a name]`. Prints a line a mutation; the exit status is 1 if one
was not caught, or if its line is not there any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.mutation.every import EVERY
from tests.mutation.mutation import Mutation

ROOT: Final = Path(__file__).parents[2]
LIMIT_SECONDS: Final = 90
"""A mutant that runs longer hangs, which is noticed too."""


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutation for mutation in EVERY if wanted in mutation.what]
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(Path(folder))
        everything = tuple(sorted({test for mutation in chosen for test in mutation.test_files}))
        if not _passes(copy, everything):
            print("the tests fail on the sources as they are")
            return 1
        survived = [mutation for mutation in chosen if not _caught(copy, mutation)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught")
    return 1 if survived or not chosen else 0


def _copied(folder: Path) -> Path:
    """The sources and tests in `folder`, which the child processes import instead of ours."""
    unwanted = shutil.ignore_patterns("__pycache__", "golden")
    for name in ("runtime", "tests", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _caught(copy: Path, mutation: Mutation) -> bool:
    module = copy / mutation.source
    text = module.read_text()
    if text.count(mutation.before) != 1:
        print(f"STALE     {mutation.what}: {module.name} has no such line, or several")
        return False
    began = time.monotonic()
    module.write_text(text.replace(mutation.before, mutation.after))
    try:
        caught = not _passes(copy, mutation.test_files)
    finally:
        module.write_text(text)
    seconds = time.monotonic() - began
    print(f"{'caught' if caught else 'SURVIVED':9} {mutation.what} ({seconds:.0f} s)", flush=True)
    return caught


def _passes(copy: Path, tests: tuple[Path, ...]) -> bool:
    """Whether all of the tests pass in the copy, in a time that they may take."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *map(str, tests)]
    environment = os.environ | {"PYTHONPATH": str(copy / "runtime"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(copy / ".hypothesis")
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
