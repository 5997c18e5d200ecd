"""`python -m e2e.gpu_runs test|bench|nine-minutes [CASE…]`: the cases that need a GPU, on this
machine's.

Needs nothing but Python until a device was found. Results go to a file, a JSON object a line. A
case that has passed there with these sources on this kind of device is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernel_archive import ARCHIVE, UnusableArchiveError, unpack

from e2e.gpu_runs.cases import LISTS, SECONDS, Case, UnknownCaseError, chosen
from e2e.gpu_runs.device import CudaDevice, NoDeviceError, cuda_devices, missing_modules
from e2e.gpu_runs.dry_run import dry_run
from e2e.gpu_runs.environment import (
    CACHE,
    ROOT,
    EnvironmentFailedError,
    environment,
)
from e2e.gpu_runs.results import BUILT, Outcome, Setting, done, line_of, sources_digest
from e2e.gpu_runs.session import run_session

TAIL_LINES = 60
READER_SECONDS = 10.0
"""Seconds to wait for the last lines of an ended process: processes that it left running may hold
its output open."""


class Runner:
    """Runs cases as processes. Figures go to the file of results as they are measured, and all
    output to a log next to it. Both survive a run that is killed."""

    def __init__(
        self, python: Path, variables: Mapping[str, str], setting: Setting, results: Path
    ) -> None:
        """`variables`: of the processes' environment."""
        self._python = python
        self._variables = variables
        self._setting = setting
        self._results = results
        self._log = results.with_suffix(".log")

    def __call__(self, case: Case, seconds: float) -> Outcome:
        print(f"… {case.name} (at most {seconds:.0f} s)", file=sys.stderr, flush=True)
        outcome = self._run(case, seconds)
        self._keep(outcome)
        print(f"  {outcome.state} in {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
        for line in outcome.tail:
            print(f"  | {line}", file=sys.stderr)
        return outcome

    def _run(self, case: Case, seconds: float) -> Outcome:
        began, state = time.monotonic(), "passed"
        command = [str(self._python), *case.words]
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(self._variables), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        lines: list[str] = []
        reader = threading.Thread(target=self._read, args=(case, process, lines), daemon=True)
        reader.start()
        try:
            state = "passed" if process.wait(seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            state = "timed-out"
        process.wait()
        reader.join(READER_SECONDS)
        taken = round(time.monotonic() - began, 1)
        tail = [] if state == "passed" else lines[-TAIL_LINES:]
        return Outcome(case.name, state, taken, list(figures(lines)), tail)

    def _read(self, case: Case, process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stdout is not None
        with process.stdout, self._log.open("a") as log:
            print(f"# {case.name}", file=log, flush=True)
            for line in process.stdout:
                print(line, end="", file=log, flush=True)
                lines.append(line.rstrip("\n"))
                for figure in figures(lines[-1:]):
                    self._keep(Outcome(case.name, "measured", 0.0, [figure]))
                    told = {"case": case.name, "device": self._setting.device, **figure}
                    print(json.dumps(told), flush=True)

    def _keep(self, outcome: Outcome) -> None:
        with self._results.open("a") as file:
            file.write(line_of(outcome, self._setting) + "\n")


def figures(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Lines of `benchmarks.turns.report`, among others."""
    for line in lines:
        if line.startswith('{"figure"'):
            try:
                yield json.loads(line)
            except ValueError:  # the process was ended while it wrote
                continue


def main(words: list[str] | None = None) -> int:
    began = time.monotonic()
    options = _parser().parse_args(words)
    seconds = SECONDS[options.kind] if options.seconds is None else options.seconds
    try:
        cases = chosen(options.kind, options.cases)
        unpack_once(ROOT)
        if options.dry_run:
            return dry_run(cases, seconds, options.wheels)
        device = cuda_devices()[0]
        results = options.results or CACHE / f"{options.kind}.jsonl"
        scale = os.environ.get("SLUICE_BENCH_SCALE", "1")
        setting = Setting(device.name, sources_digest(ROOT), scale)
        lines = [line for file in (results, *options.before) for line in _lines(file)]
        before = set[str]() if options.fresh else done(lines, setting)
        refused = () if options.compile else _without_modules(cases, before, device)
        if len(refused) == len(cases):
            return 1
        packages = environment(options.wheels)
    except (
        NoDeviceError, UnknownCaseError, UnusableArchiveError, EnvironmentFailedError,
    ) as error:  # fmt: skip
        print(f"error: {error}", file=sys.stderr)
        return 1
    results.parent.mkdir(parents=True, exist_ok=True)
    variables = packages.variables(os.environ, compiles=options.compile)
    runner = Runner(packages.python, variables, setting, results)
    left = began + seconds - time.monotonic()  # making the environment is a part of the run
    session = run_session(cases, before, refused, left, runner, time.monotonic)
    print(
        f"{options.kind} on {device.name}: {session.message}; results: {results}", file=sys.stderr
    )
    return session.exit_status


def unpack_once(root: Path) -> None:
    """Unpacks the archive of kernels of a checkout that has none.

    Raises:
        UnusableArchiveError: its kernels cannot be used here.
    """
    archive = root / ARCHIVE
    if archive.exists() and not (root / BUILT).exists():
        unpack(archive, root)


def _lines(results: Path) -> list[str]:
    return results.read_text().splitlines() if results.exists() else []


def _without_modules(
    cases: tuple[Case, ...], before: Collection[str], device: CudaDevice
) -> tuple[str, ...]:
    """Names of the cases whose kernels were not built ahead: to compile them takes longer than a
    case may take."""
    missing = {
        case.name: missing_modules(device.architecture, case)
        for case in cases
        if case.name not in before
    }
    refused = tuple(name for name, modules in missing.items() if modules)
    if refused:
        modules = sorted({module for name in refused for module in missing[name]})
        print(f"refused: {', '.join(refused)}: these modules of flashinfer are missing; "
              "scripts/gpu-kernels builds them ahead, --compile lets nvcc do it here, for minutes "
              "each", *modules, sep="\n  ", file=sys.stderr)  # fmt: skip
    return refused


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu_runs", description=__doc__)
    parser.add_argument("kind", choices=LISTS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all, in order")
    parser.add_argument("--seconds", type=float, help="of the whole run")
    parser.add_argument("--results", type=Path, help="default: .cache/gpu/KIND.jsonl")
    parser.add_argument("--fresh", action="store_true", help="run what is done as well")
    parser.add_argument(
        "--compile", action="store_true", help="let nvcc make kernels that were not built ahead"
    )
    parser.add_argument("--wheels", type=Path, help="packages that were carried along")
    parser.add_argument(
        "--before", type=Path, nargs="+", default=[], metavar="FILE", help="results of earlier runs"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would run on Hopper, and what is missing"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
