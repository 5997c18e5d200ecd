"""`sluice top` as a program: in a terminal until Ctrl-C, without one once."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread

import pytest
from sluice_contract.cluster import labels
from sluice_operator.cli.main import main
from sluice_operator.cli.top.command import snapshots
from sluice_operator.cli.top.snapshot import Snapshot
from sluice_operator.kube.errors import UnavailableError

from tests.operator.cli.terminal import in_terminal
from tests.operator.cli.top.recorded import NOW, service
from tests.operator.harness.proxy import kubeconfig_of

SERVICES = f"/apis/{labels.API_VERSION}/namespaces/shop/inferenceservices"
SWITCH = b"\x1b[?1049"
"""To another screen with `h`, and back with `l`."""


class Answers(BaseHTTPRequestHandler):
    """One service, and nothing else."""

    def do_GET(self) -> None:
        items = [service("chat")] if self.path.startswith(SERVICES) else []
        body = json.dumps({"metadata": {}, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An API server that has one service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    config = kubeconfig_of(tmp_path / "config", server.server_address[1])
    monkeypatch.setenv("KUBECONFIG", str(config))
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_a_terminal_it_draws_until_a_signal_and_leaves_it_as_it_was(number: int) -> None:
    with in_terminal("top", "-n", "shop", "--every", "0.5") as (process, terminal):
        begun = terminal.until(b"shop/chat")
        terminal.until(b"shop/chat")
        process.send_signal(number)
        ended = terminal.rest()
        assert process.wait() == 128 + number
    assert SWITCH + b"h" in begun
    assert b"connecting to http://127.0.0.1:" in begun
    assert SWITCH + b"l" in ended
    assert b"Traceback" not in ended


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_keys_act_and_q_leaves_the_terminal_as_it_was() -> None:
    with in_terminal("top", "-n", "shop") as (process, terminal):
        before = terminal.settings()
        terminal.until(b"now by name")
        assert terminal.settings() != before
        terminal.type(b"s")
        terminal.until(b"now by queue")
        terminal.type(b"?")
        terminal.until(b"any key leaves it")
        terminal.type(b"xq")
        assert SWITCH + b"l" in terminal.rest()
        assert process.wait() == 0
        assert terminal.settings() == before


@pytest.mark.process
def test_a_cluster_that_refuses_leaves_the_terminal_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(tmp_path / "config", 9)))
    with in_terminal("top", "-n", "shop") as (process, terminal):
        before = terminal.settings()
        ended = terminal.rest()
        assert process.wait() == 2
        assert terminal.settings() == before
    assert b"sluice top: GET /apis" in ended.partition(SWITCH + b"l")[2]


@pytest.mark.process
def test_it_can_be_left_while_the_cluster_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = kubeconfig_of(tmp_path / "config", silent.getsockname()[1])
        monkeypatch.setenv("KUBECONFIG", str(config))
        with in_terminal("top", "-n", "shop") as (process, terminal):
            terminal.until(b"connecting to http://127.0.0.1:")
            with silent.accept()[0] as connection:
                connection.recv(1)  # the first request is under way
                terminal.type(b"q")
                ended = terminal.rest()
            assert process.wait() == 0
    assert ended.partition(SWITCH + b"l")[2].strip() in (b"", b"\x1b[?25h")


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_it_says_what_it_waits_for_before_it_knows_the_cluster() -> None:
    with in_terminal("top", "-n", "shop") as (_, terminal):
        assert b"\x1b" not in terminal.until("connecting …".encode())


@pytest.mark.usefixtures("cluster")
def test_without_a_terminal_it_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-n", "shop"]) == 0
    shown = capsys.readouterr().out
    assert "shop/chat" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["chat", "-A"], "a NAME is of one namespace: give -n NAMESPACE instead of -A"),
        (["-n", "shop", "-A"], "argument -A/--all-namespaces: not allowed with argument"),
        (["--every", "0"], "invalid number of seconds from 0.5 to 3600 value: '0'"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    words: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", *words])
    assert ended.value.code == 2
    assert refusal in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["top", "chat NAME hi", "rollout status NAME", "autoscale history NAME"]
)
def test_without_a_cluster_every_command_ends_alike(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    name = command.partition(" NAME")[0]
    assert main(command.lower().split()) == 2
    assert capsys.readouterr().err.startswith(f"sluice {name}: no API server")


async def test_each_look_has_one_of_ten_seconds_ago_and_a_failed_one_is_the_last() -> None:
    times = count(0, 4)

    async def read() -> Snapshot:
        seconds = next(times)
        if seconds == 8:
            raise UnavailableError("GET /", "TimeoutError")
        return Snapshot(NOW + timedelta(seconds=seconds), ())

    looks = snapshots(read, 0.0)
    found = [await anext(looks) for _ in range(7)]
    await looks.aclose()
    ages = [(look.now - look.before.now).seconds if look.before else None for look in found]
    assert ages == [None, 4, 4, 12, 12, 16, 12]
    assert found[2].notes == ("as of 11:02:07, the API server did not answer: GET /: TimeoutError",)
    assert all(look.before is None or look.before.before is None for look in found)
