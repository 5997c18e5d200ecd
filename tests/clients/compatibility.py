"""`make compatibility`: every tool of `tools.TOOLS` in turn, a JSON line each, and the page.

The lines are kept in the cache. A run that was interrupted goes on after those of the same commit;
the page is written when each tool has one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx

from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain.cache import cache_directory
from tests.clients.environments import NotHereError, Place, serving
from tests.clients.tools import GROUPS, TOOLS, Tool

PAGE: Final = Path("docs/compatibility.md")
ALIASES: Final = (
    "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B-Instruct", "HuggingFaceH4/zephyr-7b-beta",
    "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen2-1.5B-Instruct", "claude-3-7-sonnet-latest",
)  # fmt: skip
"""What vLLM's tests call the model that they ask."""
MESSAGE_CHARACTERS: Final = 160
HEAD: Final = """# Compatibility

Tools that nobody of the project wrote, run unchanged against a router and an engine with this
repository's small model. `make compatibility` runs them and writes this page;
`make compatibility ONLY=NAME` runs one. The model answers three kinds of questions, and calls tools
only when it is made to: what is shown is the protocol. No time is a result.
"""
NOT_INSTALLED: Final = (
    NotHereError, ClusterError, subprocess.CalledProcessError, httpx.HTTPError,
)  # fmt: skip
TABLE: Final = ("| tool | version | what is run | passed |", "|---|---|---|---|")


@dataclass(frozen=True)
class Result:
    """A line. Without cases the tool was not run, and `not_run` says why."""

    name: str
    version: str
    commit: str
    date: str
    cases: Mapping[str, str] = field(default_factory=dict)
    not_run: str = ""

    @property
    def passed(self) -> int:
        return sum(not said for said in self.cases.values())


def run_tool(tool: Tool, place: Place, commit: str) -> Result:
    """Runs one. What keeps it from running is part of the result."""
    date = datetime.now(UTC).date().isoformat()
    about = (tool.name, tool.version, commit, date)
    if tool.run is None:
        return Result(*about, not_run=tool.not_run)
    try:
        return Result(*about, cases=tool.run(place))
    except NOT_INSTALLED as error:
        return Result(*about, not_run=f"could not be installed: {error}"[:MESSAGE_CHARACTERS])
    except Exception as error:
        return Result(*about, cases={"the run itself": f"{type(error).__name__}: {error}"[-600:]})


def unknown_failures(tool: Tool, result: Result) -> dict[str, str]:
    failed = {case: said for case, said in result.cases.items() if said}
    return {case: said for case, said in failed.items() if not tool.reason(case, said)}


def page(results: Mapping[str, Result]) -> str:
    """Of a whole run."""
    dates = sorted({result.date for result in results.values()})
    commits = sorted({result.commit for result in results.values()})
    lines = [HEAD, f"Run on {' and '.join(dates)}, commit {' and '.join(commits)}."]
    for group in GROUPS:
        lines += [f"\n## {group}\n", *TABLE]
        of_group = [(tool, results[tool.name]) for tool in TOOLS if tool.group == group]
        lines += [_row(tool, result) for tool, result in of_group]
        notes = [note for tool, result in of_group for note in _notes(tool, result)]
        lines += ["\nWhat failed:\n", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _row(tool: Tool, result: Result) -> str:
    passed = f"{result.passed} of {len(result.cases)}"
    said = f"not run: {_one_line(result.not_run)}" if result.not_run else passed
    return f"| {tool.name} | {tool.version} | {tool.what} | {said} |"


def _notes(tool: Tool, result: Result) -> Iterable[str]:
    """Known failures by reason, then the others."""
    reasons: dict[str, list[str]] = {}
    for case, said in result.cases.items():
        if said:
            reasons.setdefault(tool.reason(case, said) or f"`{_one_line(said)}`", []).append(case)
    for reason, cases in reasons.items():
        which = f"`{cases[0]}`" if len(cases) == 1 else f"{len(cases)} cases"
        yield f"- {tool.name}, {which}: {reason}"


def _one_line(message: str) -> str:
    text = " ".join(message.replace("|", "/").replace("`", "'").split())
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[: MESSAGE_CHARACTERS - 1]}…"


def results_file() -> Path:
    return cache_directory() / "compatibility.jsonl"


def kept(path: Path, commit: str) -> dict[str, Result]:
    """Lines of a commit, by tool; the last one of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {result.name: result for result in results if result.commit == commit}


def this_commit() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def chosen(only: str) -> Sequence[Tool]:
    """All, or those of the names. ValueError with the names that there are otherwise."""
    wanted, names = only.split(), [tool.name for tool in TOOLS]
    for name in wanted:
        if name not in names:
            raise ValueError(f"ONLY={name} is not allowed; allowed: {', '.join(names)}")
    return [tool for tool in TOOLS if not wanted or tool.name in wanted]


def main(only: str = "") -> None:
    commit, path = this_commit(), results_file()
    tools, results = chosen(only), kept(results_file(), commit)
    path.parent.mkdir(parents=True, exist_ok=True)
    left = [tool for tool in tools if only or tool.name not in results]
    with (
        tempfile.TemporaryDirectory(prefix="sluice-compatibility-") as folder,
        serving(Path(folder), ALIASES) as place,
    ):
        for tool in left:
            result = results[tool.name] = run_tool(tool, place, commit)
            with path.open("a") as file:
                file.write(f"{json.dumps(asdict(result))}\n")
            _tell(tool, result)
    if len(results) == len(TOOLS):
        PAGE.write_text(page(results))
        print(f"{PAGE} is written")


def _tell(tool: Tool, result: Result) -> None:
    unknown: dict[str, Any] = unknown_failures(tool, result)
    about = {"passed": result.passed, "of": len(result.cases), "not_run": result.not_run}
    print(json.dumps({"name": tool.name, **about, "failed": unknown}), flush=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # the first comes ignored in the background
        signal.signal(number, signal.default_int_handler)
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted; the next run goes on after the tools above")
    except ValueError as error:
        sys.exit(str(error))
