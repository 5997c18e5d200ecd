"""The table of other people's tools and its page; at level `full`, each tool itself."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.clients.compatibility import (
    ALIASES,
    PAGE,
    Result,
    chosen,
    kept,
    page,
    run_tool,
    this_commit,
    unknown_failures,
)
from tests.clients.environments import NotHereError, Place, serving
from tests.clients.load_tools import Outcomes, outcomes
from tests.clients.tools import GROUPS, LOAD, TOOLS, Tool
from tests.runtime.launch.processes import HANG_SECONDS, until

NOWHERE = Place("", "", "", Path())


def tool(**more: object) -> Tool:
    return Tool("bench", LOAD, "1.0", "chats", **more)  # type: ignore[arg-type]


def fails(_: Place) -> Outcomes:
    return {"chats": "", "tools": "not served", "streams": "cut"}


def test_the_page_has_every_tool_and_its_version() -> None:
    rows = set(re.findall(r"^\| (.*?) \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    assert {(tool.name, tool.version) for tool in TOOLS} == rows - {("tool", "version")}


def test_the_page_is_linked() -> None:
    assert "(compatibility.md)" in Path("docs/README.md").read_text()


def test_tools_have_a_name_each_and_a_group_of_the_page() -> None:
    names = [tool.name for tool in TOOLS]
    assert len(set(names)) == len(names)
    assert {tool.group for tool in TOOLS} == set(GROUPS)
    assert all((tool.run is None) == bool(tool.not_run) for tool in TOOLS)


def test_failures_that_are_known_have_a_reason() -> None:
    some = tool(run=fails, known={"not served": "its own route"})
    result = run_tool(some, NOWHERE, "abc")
    assert (result.passed, len(result.cases)) == (1, 3)
    assert unknown_failures(some, result) == {"streams": "cut"}


def test_what_cannot_be_installed_says_so() -> None:
    def run(_: Place) -> Outcomes:
        raise NotHereError("no npm")

    result = run_tool(tool(run=run), NOWHERE, "abc")
    assert (result.not_run, result.cases) == ("could not be installed: no npm", {})


def test_a_tool_that_ends_early_has_failed() -> None:
    def run(_: Place) -> Outcomes:
        raise RuntimeError("exit code 1")

    some = tool(run=run)
    result = run_tool(some, NOWHERE, "abc")
    assert unknown_failures(some, result) == {"the run itself": "RuntimeError: exit code 1"}


def test_a_whole_run_is_a_page() -> None:
    results = {tool.name: Result(tool.name, tool.version, "abc", "2026-11-28") for tool in TOOLS}
    bench = next(tool for tool in TOOLS if tool.name == "sglang-bench")
    cases = {"backend sglang": "404", "backend vllm": "", "backend vllm-chat": "a | b"}
    results[bench.name] = Result(bench.name, bench.version, "abc", "2026-11-28", cases)
    text = page(results)
    assert "Run on 2026-11-28, commit abc." in text
    assert f"| sglang-bench | {bench.version} | {bench.what} | 1 of 3 |" in text
    assert "- sglang-bench, `backend sglang`: asks `/generate`" in text
    assert "- sglang-bench, `backend vllm-chat`: `a / b`" in text


def test_a_run_goes_on_after_the_tools_of_its_commit(tmp_path: Path) -> None:
    lines = [Result("a", "1", "old", "2026-11-27"), Result("b", "1", "new", "2026-11-28")]
    lines.append(Result("b", "1", "new", "2026-11-28", {"chats": ""}))
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join(json.dumps(asdict(line)) for line in lines))
    assert kept(file, "new") == {"b": lines[2]}
    assert kept(tmp_path / "none", "new") == {}


def test_an_unknown_name_is_told_the_names() -> None:
    with pytest.raises(ValueError, match="ONLY=vllm is not allowed; allowed: guidellm, aiperf"):
        chosen("vllm")


def test_a_case_that_fails_stops_no_other() -> None:
    def refuse() -> None:
        raise AssertionError("1 of 2 failed")

    cases = outcomes({"a": refuse, "b": lambda: None})
    assert cases == {"a": "AssertionError: 1 of 2 failed", "b": ""}


@pytest.mark.process
def test_nothing_outlives_an_interrupted_tool(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    child = f"sleep 600 & echo $! > {mark}; wait"
    source = (
        "import signal\nfrom pathlib import Path\nfrom tests.clients.environments import Place\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"Place('', '', '', Path({str(tmp_path)!r})).run(['sh', '-c', {child!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.DEVNULL) as process:
        until(lambda: mark.exists() and mark.read_text().strip() != "")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_SECONDS) != 0
    pid = int(mark.read_text())
    until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return "\tZ" not in Path(f"/proc/{pid}/status").read_text().replace("State:", "\t")
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with serving(tmp_path_factory.mktemp("compatibility"), ALIASES) as place:
        yield place


@pytest.mark.full
@pytest.mark.timeout(2400)
@pytest.mark.xdist_group("clients")
@pytest.mark.parametrize("name", [tool.name for tool in TOOLS if tool.run is not None])
def test_a_tool_fails_only_where_it_is_known_to(place: Place, name: str) -> None:
    (tool,) = chosen(name)
    result = run_tool(tool, place, this_commit())
    if result.not_run:
        pytest.skip(result.not_run)
    assert unknown_failures(tool, result) == {}
