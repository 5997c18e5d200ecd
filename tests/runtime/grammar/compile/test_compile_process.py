"""The compile process, and its limits."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sluice_runtime.errors import (
    CompileKilledError,
    GrammarError,
    GrammarLimitError,
    GrammarProcessError,
)
from sluice_runtime.grammar.compile.pool import Compiled, CompilePool
from sluice_runtime.grammar.compile.process import CompileLimits, CompileProcess
from sluice_runtime.grammar.keys import GrammarKey, KeptGrammar
from sluice_runtime.wire.messages import GrammarKind

from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.process

WORKER = (
    sys.executable, "-m", "sluice_runtime.grammar.compile.worker",
    "--model", "dummy://qwen3-tiny", "--vocabulary-size", "259", "--memory-bytes", str(2 << 30),
)  # fmt: skip
NEVER_DONE = json.dumps(
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}
)

LONGER = r"more than 0\.5 s of a processor; allowed: at most 0\.5 s \(grammarCompileSeconds\); few"
LARGER = r"more than 1024 MiB of memory; allowed: at most 1024 MiB \(grammarCompileBytes\); fewer"


def job(kind: GrammarKind, text: str) -> bytes:
    return json.dumps({"kind": kind, "text": text}).encode()


GOOD = job("regex", "[a-f]+")


@contextmanager
def process_of(command: Any = WORKER, **limits: Any) -> Iterator[CompileProcess]:
    process = CompileProcess(command, CompileLimits(**limits))
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def process() -> Iterator[CompileProcess]:
    with process_of() as running:
        yield running


def stub(script: str) -> tuple[str, ...]:
    """A process that says it has started and then does as the script says."""
    head = "import os, sys\nfrom sluice_runtime.grammar.frames import *\n"
    return (sys.executable, "-c", head + textwrap.dedent(script))


def pid_of(process: CompileProcess) -> int:
    assert process._process is not None
    return process._process.pid


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type": "integer"}'),
        ("open_json_schema", '{"type": "object"}'),
        ("regex", "[0-9]+(a|b)"),
        ("ebnf", 'root ::= "a" rest\nrest ::= "b"*'),
        (
            "tags",
            '{"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}',
        ),
    ],
)
def test_each_kind_of_grammar_is_compiled(
    process: CompileProcess, kind: GrammarKind, text: str
) -> None:
    assert json.loads(process.compile(job(kind, text)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(a"),
        ("regex", "a^b"),
        ("json_schema", "{"),
        ("json_schema", "false"),
        ("json_schema", '{"$ref": "#"}'),
        ("ebnf", "root ::= missing"),
        ("ebnf", ""),
        ("tags", "{}"),
    ],
)
def test_a_process_that_refused_a_grammar_compiles_the_next(
    process: CompileProcess, kind: GrammarKind, text: str
) -> None:
    with pytest.raises(GrammarError):
        process.compile(job(kind, text))
    assert process.compile(GOOD)


def test_one_that_takes_too_long_is_killed_and_the_next_is_compiled() -> None:
    with process_of(compile_seconds=0.5) as process:
        process.compile(GOOD)
        first = pid_of(process)
        with pytest.raises(GrammarLimitError, match=LONGER):
            process.compile(job("json_schema", NEVER_DONE))
        assert not Path(f"/proc/{first}").exists()
        assert process.compile(GOOD)
        assert pid_of(process) != first


def test_one_that_gets_no_processor_is_not_the_grammars_fault() -> None:
    """It sleeps, as far as the engine can see: so does one that others keep from its processor."""
    script = """
        write_frame(1, DONE)
        read_frame(0)
        sys.stdin.buffer.read()
    """
    with (
        process_of(stub(script), compile_seconds=0.1) as process,
        pytest.raises(GrammarProcessError, match=r"too busy .*: 0\.0 s .* within 0\.8 s"),
    ):
        process.compile(GOOD)


def test_one_that_sleeps_now_and_then_has_its_time_of_a_processor() -> None:
    script = """
        import time
        write_frame(1, DONE)
        read_frame(0)
        time.sleep(0.5)
        write_frame(1, DONE + b"fine")
    """
    with process_of(stub(script), compile_seconds=0.4) as process:
        assert process.compile(GOOD) == b"fine"


@pytest.mark.parametrize(
    ("end", "error", "says"),
    [
        ("os.abort()", GrammarLimitError, r"ends the compile process \(exit code -6\)"),
        ("sys.exit(3)", GrammarLimitError, r"exit code 3"),
        ("os.kill(os.getpid(), 9)", CompileKilledError, "no memory left"),
        ("write_frame(1, TOO_LARGE)", GrammarLimitError, LARGER),
    ],
)
def test_one_that_dies_of_its_work_is_started_again(
    end: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    script = f"""
        write_frame(1, DONE)
        read_frame(0)
        if not os.path.exists("{tmp_path}/died"):
            open("{tmp_path}/died", "w").close()
            {end}
            read_frame(0)
        write_frame(1, DONE + b"fine")
    """
    with process_of(stub(script), memory_bytes=1 << 30) as process:
        with pytest.raises(error, match=says):
            process.compile(GOOD)
        assert process.compile(GOOD) == b"fine"


def test_one_that_is_killed_between_two_grammars_is_started_again() -> None:
    with process_of() as process:
        process.compile(GOOD)
        assert process._process is not None
        os.kill(pid_of(process), signal.SIGKILL)
        process._process.wait()
        assert process.compile(GOOD)


def test_memory_is_bounded() -> None:
    limit = 512 << 20
    with process_of((*WORKER[:-1], str(limit)), memory_bytes=limit, compile_seconds=60) as process:
        process.compile(GOOD)
        first = pid_of(process)
        assert Path(f"/proc/{first}/oom_score_adj").read_text() == "1000\n"
        with pytest.raises(GrammarLimitError, match="more than 512 MiB of memory"):
            process.compile(job("json_schema", NEVER_DONE))
        assert process.compile(GOOD)
        assert pid_of(process) != first, "what it holds would be missing for the next one"


def test_an_answer_without_end_is_refused() -> None:
    script = """
        write_frame(1, DONE)
        read_frame(0)
        os.write(1, b"\\xff\\xff\\xff\\xff")
        sys.stdin.buffer.read()
    """
    with process_of(stub(script)) as process, pytest.raises(GrammarError, match="64 MiB") as error:
        process.compile(GOOD)
    assert not isinstance(error.value, GrammarLimitError)


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"decoder": {"type": "WordPiece"}}')
    command = (*WORKER[:4], str(tmp_path), *WORKER[5:])
    with process_of(command) as process, pytest.raises(GrammarProcessError, match="WordPiece"):
        process.compile(GOOD)


@pytest.mark.parametrize(
    "command", [stub("sys.exit(3)"), stub("sys.stdin.buffer.read()"), ("/nowhere/to/be/found",)]
)
def test_no_process_is_not_the_grammars_fault(command: tuple[str, ...]) -> None:
    def make() -> CompileProcess:
        return CompileProcess(command, CompileLimits(start_seconds=1.0))

    with pytest.raises(GrammarProcessError, match="does not start"):
        make().compile(GOOD)
    pool = CompilePool(make, keep_here)
    pool.submit(GrammarKey("regex", "a"))
    (done,) = collect(pool, 1)
    assert "does not start" in done.failure
    assert not done.error
    pool.close()


def test_it_ends_when_the_engine_is_gone() -> None:
    with process_of() as process:
        process.compile(GOOD)
        popen = process._process
        assert popen is not None
        assert popen.stdin is not None
        popen.stdin.close()
        assert popen.wait(PATIENCE_SECONDS) == 0


def test_it_loads_no_torch() -> None:
    with process_of() as process:
        process.compile(GOOD)
        maps = Path(f"/proc/{pid_of(process)}/maps").read_text()
    assert "libxgrammar" in maps
    assert "libtorch" not in maps


def test_a_pool_starts_as_many_processes_as_it_needs_and_ends_them() -> None:
    made: list[CompileProcess] = []

    def make() -> CompileProcess:
        made.append(CompileProcess(WORKER, CompileLimits(compile_seconds=0.5)))
        return made[-1]

    pool = CompilePool(make, keep_here, max_processes=2)
    assert pool.finished() == []
    slow, quick = GrammarKey("json_schema", NEVER_DONE), GrammarKey("regex", "[a-c]")
    for key in (slow, quick, GrammarKey("regex", "[")):
        pool.submit(key)
    done = collect(pool, 3)
    assert len(made) == 2
    by_key = {one.key: one for one in done}
    assert "more than 0.5 s" in by_key[slow].error
    assert by_key[slow].accident
    assert [by_key[key].outcome for key in (slow, quick)] == ["limit", "compiled"]
    assert by_key[slow].seconds > 0.5
    assert by_key[quick].grammar is not None
    assert by_key[GrammarKey("regex", "[")].error
    assert not by_key[GrammarKey("regex", "[")].accident
    pool.submit(quick)
    assert collect(pool, 1)[0].grammar is not None
    pool.close()
    assert all(process._process is None for process in made)


def test_a_pool_says_that_a_grammar_is_compiled() -> None:
    finished = threading.Event()
    pool = CompilePool(
        lambda: CompileProcess(WORKER, CompileLimits()), keep_here, on_finished=finished.set
    )
    pool.submit(GrammarKey("regex", "[a-c]"))
    assert finished.wait(60)
    assert len(pool.finished()) == 1
    pool.close()


def test_a_pool_that_is_warm_compiles_its_first_grammar_in_the_process_that_it_has() -> None:
    made: list[CompileProcess] = []

    def make() -> CompileProcess:
        made.append(CompileProcess(WORKER, CompileLimits()))
        return made[-1]

    pool = CompilePool(make, keep_here)
    pool.warm_up()
    until(lambda: pool.finished() == [] and not pool._unfinished)
    pid = pid_of(made[0])
    pool.submit(GrammarKey("regex", "[ab]"))
    assert collect(pool, 1)[0].grammar is not None
    assert [pid_of(process) for process in made] == [pid]
    pool.close()


def test_a_pool_takes_back_what_it_has_not_begun_with() -> None:
    pool = CompilePool(
        lambda: CompileProcess(WORKER, CompileLimits(compile_seconds=0.5)),
        keep_here,
        max_processes=1,
    )
    slow, gone, kept = GrammarKey("json_schema", NEVER_DONE), *keys("[a-c]", "[d-f]")
    for key in (slow, gone, kept):
        pool.submit(key)
    assert pool.withdraw(gone)
    assert not pool.withdraw(gone)
    assert [one.key for one in collect(pool, 2)] == [slow, kept]
    assert not pool.withdraw(slow)
    pool.close()


@pytest.mark.parametrize(
    "begins", ["", "write_frame(1, DONE)\nread_frame(0)"], ids=["start", "work"]
)
def test_a_pool_ends_at_once_whatever_it_does(begins: str, tmp_path: Path) -> None:
    made: list[CompileProcess] = []
    says = f"open(f'{tmp_path}/{{os.getpid()}}', 'w')"

    def make() -> CompileProcess:
        command = stub(f"{begins}\n{says}\nsys.stdin.buffer.read()")
        made.append(CompileProcess(command, CompileLimits(start_seconds=600, compile_seconds=600)))
        return made[-1]

    pool = CompilePool(make, keep_here, max_processes=2)
    for text in "abcd":
        pool.submit(GrammarKey("regex", text))
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    pool.close()
    assert [process._process for process in made] == [None, None]
    assert not any("killed" in one.failure for one in pool.finished())


def keep_here(text: bytes, tokenizer: bytes) -> KeptGrammar:
    assert json.loads(text)
    assert json.loads(tokenizer)
    return KeptGrammar(0, text)


def keys(*patterns: str) -> list[GrammarKey]:
    return [GrammarKey("regex", pattern) for pattern in patterns]


def collect(pool: CompilePool, number: int) -> list[Compiled]:
    done: list[Compiled] = []

    def all_done() -> bool:
        if len(done) != number:
            done.extend(pool.finished())
        return len(done) == number

    until(all_done)
    return done


def until(holds: Callable[[], object]) -> None:
    """Asks as the engine's loop does, between its steps."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)
