"""The supervisor and the real API process, beside a fake engine: who ends when, with what code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sluice_contract.cluster.termination import TerminationMessage

from tests.runtime.launch.processes import (
    HANG_SECONDS,
    SOON_SECONDS,
    Process,
    alive,
    descendants,
    running,
    status,
    until,
    write_config,
)

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).parent / "with_fake_engine.py"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def termination_log(tmp_path: Path) -> Path:
    path = tmp_path / "termination-log"
    path.touch()
    return path


@contextmanager
def supervised(
    log: Path, *engine: str, drain_seconds: float = 120, **server: int
) -> Iterator[Process]:
    config = write_config(log.parent, server={"drainSeconds": drain_seconds, **server})
    command = [sys.executable, str(PROGRAM), str(config), *engine]
    with running(command, SLUICE_TERMINATION_LOG=str(log), PYTHONPATH=str(ROOT)) as process:
        yield process


@contextmanager
def stream(url: str, tokens: int) -> Iterator[Iterator[str]]:
    """Events after the first of a stream of `tokens` tokens; an event may have several."""
    body = {"model": "tiny", "prompt": "x" * tokens, "stream": True, "max_tokens": tokens + 1}
    with (
        httpx.Client(verify=False, timeout=HANG_SECONDS) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = (line for line in response.iter_lines() if line)
        assert '"text":"x' in next(lines)
        yield lines


def message(log: Path) -> TerminationMessage:
    return TerminationMessage.model_validate_json(log.read_text())


def test_metrics_have_a_port_of_their_own_until_the_last_answer(termination_log: Path) -> None:
    with supervised(termination_log, metricsPort=0) as process:
        metrics = process.wait_for(r"metrics are at (http://\S+)/metrics")[1]
        url = process.ready_url()
        assert [status(port, "/metrics") for port in (metrics, url)] == [200, 404]
        with stream(url, 100) as lines:
            process.popen.terminate()
            until(lambda: status(metrics, "/ready") == 503)
            assert status(metrics, "/load") == 200
            assert sum(1 for _ in lines) > 50
        assert process.popen.wait(HANG_SECONDS) == 0


def test_sigterm_lets_streams_finish_and_ends_soon_after_the_last(termination_log: Path) -> None:
    with supervised(termination_log) as process:
        url = process.ready_url()
        children = descendants(process.popen.pid)
        with stream(url, 100) as lines:
            process.popen.terminate()
            until(lambda: status(url, "/ready") == 503)
            refused = httpx.post(
                f"{url}/v1/completions", json={}, verify=False, timeout=HANG_SECONDS
            )
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            rest = list(lines)
        assert '"finish_reason":"stop"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        finished = time.monotonic()
        assert process.popen.wait(HANG_SECONDS) == 0
        assert time.monotonic() - finished < SOON_SECONDS
        assert not any(map(alive, children))
        assert termination_log.read_text() == ""


def test_a_drain_that_takes_too_long_ends_streams_with_an_error(termination_log: Path) -> None:
    with supervised(termination_log, drain_seconds=0.2) as process:
        url = process.ready_url()
        with stream(url, 250) as lines:
            process.popen.terminate()
            rest = list(lines)
        assert "the server has shut down" in rest[-1]
        assert process.popen.wait(HANG_SECONDS) == 0


def test_a_second_signal_hurries(termination_log: Path) -> None:
    with supervised(termination_log) as process:
        url = process.ready_url()
        with stream(url, 250) as lines:
            process.popen.send_signal(signal.SIGINT)
            until(lambda: status(url, "/ready") == 503)
            process.popen.send_signal(signal.SIGINT)
            rest = list(lines)
        assert "the server has shut down" in rest[-1]
        assert process.popen.wait(HANG_SECONDS) == 0


def test_an_engine_that_is_killed_ends_streams_with_an_error_and_then_all(
    termination_log: Path,
) -> None:
    with supervised(termination_log) as process:
        url = process.ready_url()
        with stream(url, 250) as lines:
            killed = time.monotonic()
            os.kill(process.child("fake_engine"), signal.SIGKILL)
            rest = list(lines)
            assert time.monotonic() - killed < SOON_SECONDS / 2  # silence would take 10
        assert '"error"' in rest[-1]
        assert process.popen.wait(HANG_SECONDS) == 1
        assert "error: the engine process was ended by SIGKILL" in process.rest()
        assert message(termination_log).reason == "EngineDied"


def test_an_engine_that_ended_before_the_supervisor_runs_is_noticed() -> None:
    """As one that cannot load its libraries, while the launcher still checks."""
    script = (
        "import os, sys; from sluice_runtime.process import child, supervisor;"
        "supervisor._SECOND_END_SECONDS = 0.0; engine = child.started_child(['false'], {});"
        "os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT);"
        "sys.exit(supervisor.Supervisor({}).run(['sleep', '600'], engine))"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS)
    assert ended.returncode == 1
    assert ended.stderr == "error: the engine process ended with exit code 1\n"


def test_an_engine_that_hangs_ends_streams_with_an_error_and_no_drain_waits_for_it(
    termination_log: Path,
) -> None:
    with supervised(termination_log) as process:
        url = process.ready_url()
        engine = process.child("fake_engine")
        with stream(url, 250) as lines:
            os.kill(engine, signal.SIGSTOP)
            process.popen.terminate()
            rest = list(lines)
        assert '"code":"engine_died"' in rest[-1]
        assert process.popen.wait(HANG_SECONDS) == 1
        assert not alive(engine)
        assert message(termination_log).reason == "EngineHung"


def test_an_api_process_that_is_killed_ends_the_engine(termination_log: Path) -> None:
    with supervised(termination_log) as process:
        process.ready_url()
        engine = process.child("fake_engine")
        os.kill(process.child("sluice_runtime.server"), signal.SIGKILL)
        assert process.popen.wait(HANG_SECONDS) == 1
        assert not alive(engine)
        assert message(termination_log).reason == "ApiProcessDied"


def test_a_supervisor_that_is_killed_takes_both_with_it(termination_log: Path) -> None:
    with supervised(termination_log) as process:
        process.ready_url()
        children = descendants(process.popen.pid)
        assert len(children) == 2
        process.popen.kill()
        until(lambda: not any(map(alive, children)))


def test_the_engines_error_is_the_termination_message(
    termination_log: Path,
) -> None:
    with supervised(termination_log, "--fail", "model.uri: no such file") as process:
        assert process.popen.wait(HANG_SECONDS) == 2
        assert message(termination_log) == TerminationMessage(
            reason="ModelLoadFailed", message="model.uri: no such file"
        )
        assert process.rest().count("error: model.uri: no such file") == 1


def test_orphans_are_reaped(termination_log: Path) -> None:
    """As PID 1 in a container: what a child leaves behind becomes the supervisor's."""
    script = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1);"  # PR_SET_CHILD_SUBREAPER
        "from tests.runtime.launch.with_fake_engine import main; sys.exit(main())"
    )
    config = write_config(termination_log.parent)
    with running(
        [sys.executable, "-c", script, str(config), "--orphan"],
        SLUICE_TERMINATION_LOG=str(termination_log),
        PYTHONPATH=str(ROOT),
    ) as process:
        process.ready_url()
        until(lambda: len(descendants(process.popen.pid)) == 2)  # zombies count
        assert process.end()[0] == 0


def test_a_taken_port_is_one_line_and_exit_code_2(termination_log: Path) -> None:
    with supervised(termination_log) as process:
        port = int(process.ready_url().rpartition(":")[2])
        config = write_config(termination_log.parent, server={"port": port})
        program = [sys.executable, str(PROGRAM), str(config)]
        second = subprocess.run(
            program,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_SECONDS,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SLUICE_TERMINATION_LOG": "/nowhere"},
        )
        assert second.returncode == 2
        assert second.stderr.startswith("error: server.host, server.port: cannot listen")
        assert second.stderr.endswith(f"(add --port {port + 1}; to make serve: PORT={port + 1})\n")
        assert second.stderr.count("\n") == 1
