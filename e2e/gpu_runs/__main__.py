"""`python -m e2e.gpu_runs test|bench [CASE…]`: the cases that need a GPU, on this machine's.

Needs nothing but Python until a device was found. Results go to a file, a JSON object a line; what
has passed there with the same sources on the same kind of device is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.gpu_runs.cases import LISTS, Case, UnknownCaseError, chosen
from e2e.gpu_runs.device import NoDeviceError, cuda_devices
from e2e.gpu_runs.environment import (
    ROOT,
    Environment,
    EnvironmentFailedError,
    environment,
)
from e2e.gpu_runs.results import Outcome, Setting, done, line_of, sources_digest
from e2e.gpu_runs.session import run_session

SECONDS = 480.0
TAIL_LINES = 40


class Runner:
    """Runs cases as processes and appends their outcomes to the file."""

    def __init__(self, environment: Environment, setting: Setting, results: Path) -> None:
        self._environment = environment
        self._setting = setting
        self._results = results

    def __call__(self, case: Case, seconds: float) -> Outcome:
        print(f"… {case.name} (at most {seconds:.0f} s)", file=sys.stderr, flush=True)
        outcome = self._run(case, seconds)
        with self._results.open("a") as file:
            file.write(line_of(outcome, self._setting) + "\n")
        print(f"  {outcome.state} in {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
        for figure in outcome.figures:
            print(json.dumps({"case": case.name, "device": self._setting.device, **figure}))
        for line in outcome.tail:
            print(f"  | {line}", file=sys.stderr)
        sys.stdout.flush()
        return outcome

    def _run(self, case: Case, seconds: float) -> Outcome:
        began, state = time.monotonic(), "passed"
        command = [str(self._environment.python), *case.words]
        variables = self._environment.variables(os.environ)
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
            state = "passed" if process.returncode == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            state = "timed-out"
        taken = round(time.monotonic() - began, 1)
        lines = output.splitlines()
        tail = [] if state == "passed" else lines[-TAIL_LINES:]
        return Outcome(case.name, state, taken, list(figures(lines)), tail)


def figures(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Lines of `benchmarks.turns.report`, among others."""
    for line in lines:
        if line.startswith('{"figure"'):
            try:
                yield json.loads(line)
            except ValueError:  # the process was ended while it wrote
                continue


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    try:
        cases = chosen(options.kind, options.cases)
        devices = cuda_devices()
        cache = ROOT / ".cache" / "gpu"
        python = environment(options.wheels, cache)
    except (NoDeviceError, UnknownCaseError, EnvironmentFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    results = options.results or cache / f"{options.kind}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    setting = Setting(devices[0], sources_digest(ROOT))
    known = results.read_text().splitlines() if results.exists() and not options.fresh else []
    runner = Runner(python, setting, results)
    session = run_session(cases, done(known, setting), options.seconds, runner, time.monotonic)
    print(f"{options.kind} on {devices[0]}: {session.message}; results: {results}", file=sys.stderr)
    return 1 if session.failed else 2 if session.left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu_runs", description=__doc__)
    parser.add_argument("kind", choices=LISTS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all, in order")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the whole run")
    parser.add_argument("--results", type=Path, help="default: .cache/gpu/KIND.jsonl")
    parser.add_argument("--fresh", action="store_true", help="run what is done as well")
    parser.add_argument("--wheels", type=Path, help="packages that were carried along")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
