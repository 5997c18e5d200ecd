"""`sluice chat`: answers of a service that the API server proxies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sluice_operator.cli.main import main

from tests.operator.cli.terminal import in_terminal
from tests.operator.harness.proxy import kubeconfig_of

ROUTES = "/api/v1/namespaces/shop/services/chat:80/proxy/v1"
STATUS = {"kind": "Status"}


def delta(text: str = "", reasoning: str = "") -> dict[str, Any]:
    said = {"content": text} if text else {"reasoning_content": reasoning}
    return {"choices": [{"delta": said}]}


USAGE = {"choices": [], "usage": {"completion_tokens": 3}}
ANSWER = [{"choices": [{"delta": {"role": "assistant"}}]}, delta("Hi "), delta("Bob."), USAGE]


class Proxy:
    """What the API server answers for the service, and what it was asked."""

    def __init__(self) -> None:
        self.refusal: tuple[int, object] | None = None
        self.events: list[dict[str, Any]] = ANSWER
        self.is_done = True
        """Whether the answer ends as a whole one does."""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.holds, self.gone = False, Event()
        """Whether the answer goes on without an end; set when its client has gone."""


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """An API server with one service, as the kubeconfig names it."""
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == f"{ROUTES}/models"
            models = {"data": [{"id": "tiny"}, {"id": "an-adapter"}]}
            self._send(*(proxy.refusal or ((200, models) if found else (404, STATUS))))

        def do_POST(self) -> None:
            proxy.keys.append(self.headers["X-Api-Key"])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            proxy.asked.append(body)
            if proxy.refusal is not None:
                self._send(*proxy.refusal)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in proxy.events:
                self.wfile.write(b"data: %s\n\n" % json.dumps(event).encode())
            if proxy.holds:
                proxy.holds = False
                self.connection.recv(1)
                proxy.gone.set()
            if proxy.is_done:
                self.wfile.write(b"data: [DONE]\n\n")

        def _send(self, status: int, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    config = kubeconfig_of(tmp_path / "config", server.server_address[1])
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.delenv("SLUICE_API_KEY", raising=False)
    yield proxy
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_prompt_gets_one_answer(proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    proxy.events = [delta(reasoning="Let me see."), *ANSWER]
    assert main(["chat", "chat", "-n", "shop", "Who am I?"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("Hi Bob.\n", "")
    (asked,) = proxy.asked
    assert asked["model"] == "tiny"
    assert asked["messages"] == [{"role": "user", "content": "Who am I?"}]


def test_a_prompt_may_come_through_a_pipe(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = os.pipe()
    os.write(here, b"Who\nam I?\n")
    os.close(here)
    with os.fdopen(there) as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        assert main(["chat", "chat", "-n", "shop", "-m", "an-adapter"]) == 0
    assert capsys.readouterr().out == "Hi Bob.\n"
    assert proxy.asked[0]["model"] == "an-adapter"
    assert proxy.asked[0]["messages"][0]["content"] == "Who\nam I?\n"


@pytest.mark.parametrize("in_file", [True, False])
def test_the_key_of_the_service_is_sent(
    in_file: bool, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["chat", "chat", "-n", "shop", "-m", "tiny", "hi"]
    monkeypatch.setenv("SLUICE_API_KEY", "of the environment")
    if in_file:
        (tmp_path / "key").write_text("of the file\n")
        words += ["--key-file", str(tmp_path / "key")]
    assert main(words) == 0
    assert proxy.keys == ["of the file" if in_file else "of the environment"]


REFUSALS = [
    (
        (404, STATUS | {"details": {"kind": "services"}}),
        "InferenceService chat is not in namespace shop; `kubectl get infsvc -A`",
    ),
    ((403, STATUS), 'a Role needs the rule {apiGroups: [""], resources: [services/proxy], verbs:'),
    ((503, STATUS | {"message": "no endpoints"}), "503 no endpoints; `sluice top chat -n shop`"),
    ((500, STATUS | {"message": "broken"}), "500 broken; `sluice top chat -n shop`"),
    ((503, {"error": {"message": "No engine."}}), "503 No engine.; `sluice top chat -n shop`"),
    ((401, {"error": {"message": "No key."}}), "401 No key.; give a key of the service: SLUICE_A"),
    ((404, {"error": {"message": "No model x."}}), "404 No model x."),
    ((502, []), "502 without a reason"),
]


@pytest.mark.parametrize("words", [[], ["-m", "tiny"]])
@pytest.mark.parametrize(("refusal", "says"), REFUSALS)
def test_a_refusal_is_one_line_that_says_what_to_do(
    refusal: tuple[int, object],
    says: str,
    words: list[str],
    proxy: Proxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proxy.refusal = refusal
    status = 2 if refusal == (403, STATUS) else 1
    assert main(["chat", "chat", "-n", "shop", *words, "hi"]) == status
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("sluice chat: ")
    assert says in shown.err


def test_an_answer_that_ends_with_an_error_is_none(
    proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.events = [delta("Hi"), {"error": {"message": "The engine died."}}]
    assert main(["chat", "chat", "-n", "shop", "hi"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("Hi", "sluice chat: The engine died.\n")


def test_an_answer_is_cut_and_says_so(proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    end = {"choices": [{"delta": {}, "finish_reason": "length"}]}
    proxy.events = [{"choices": [{"delta": {"content": "Hi"}}]}, end]
    assert main(["chat", "chat", "-n", "shop", "--max-tokens", "7", "hi"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hi\n"
    assert "cut after 7 tokens; --max-tokens allows more" in shown.err
    assert proxy.asked[-1]["max_tokens"] == 7


def test_an_answer_that_breaks_off_is_none(
    proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.is_done = False
    assert main(["chat", "chat", "-n", "shop", "hi"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "Hi Bob."
    assert shown.err.endswith(": the answer broke off\n")


@pytest.mark.process
@pytest.mark.usefixtures("proxy")
def test_an_answer_that_cannot_be_written_is_no_fault_of_the_key() -> None:
    command = [str(Path(sys.executable).with_name("sluice")), "chat", "chat", "-n", "shop", "hi"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "sluice chat: [Errno 28] No space left on device\n",
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["../../../../healthz?x="], "NAME: '../../../../healthz?x='"),
        (["chat:http"], "NAME: 'chat:http'"),
        (["chat\n"], r"NAME: 'chat\n'"),
        (["chat", "-n", "shop/pods"], "-n/--namespace: 'shop/pods'"),
        (["chat", "-n", ""], "-n/--namespace: ''"),
    ],
)
def test_a_name_that_is_no_dns_label_is_refused(
    words: list[str], named: str, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chat", *words, "-m", "tiny", "hi"])
    assert ended.value.code == 2
    assert f"{named} is not allowed; allowed: a DNS label" in capsys.readouterr().err
    assert proxy.asked == []


def test_a_service_without_models_is_named(
    proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.refusal = 200, {"data": []}
    assert main(["chat", "chat", "-n", "shop", "hi"]) == 1
    assert "chat lists no model; `sluice top chat -n shop`" in capsys.readouterr().err


def test_a_key_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "chat", "--key-file", str(tmp_path / "none"), "hi"]) == 2
    assert "--key-file" in capsys.readouterr().err


def test_an_empty_prompt_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chat", "chat", " "])
    assert ended.value.code == 2
    assert "PROMPT: empty" in capsys.readouterr().err


@pytest.mark.process
def test_a_conversation_remembers_until_it_is_cleared(proxy: Proxy) -> None:
    with in_terminal("chat", "chat", "-n", "shop") as (process, terminal):
        for line in (b"one", b"two", b"/clear", b"three"):
            terminal.until(b"> ")
            terminal.type(line + b"\n")
        shown = terminal.until(b"tokens\x1b[0m")
        terminal.until(b"> ")
        terminal.type(b"\x04")
        terminal.rest()
        assert process.wait() == 0
    assert b"TTFT " in shown
    said = [[message["content"] for message in asked["messages"]] for asked in proxy.asked]
    assert said == [["one"], ["one", "Hi Bob.", "two"], ["three"]]


@pytest.mark.process
def test_a_terminal_shows_whole_words(proxy: Proxy) -> None:
    proxy.events = [delta("many " * 15), delta("peo"), delta("ple.")]
    with in_terminal("chat", "chat", "-n", "shop", "Who?") as (process, terminal):
        shown = terminal.until(b"ple.")
        terminal.rest()
        assert process.wait() == 0
    assert shown.endswith(b"many peop\x1b[4D\x1b[K\r\npeople.")


@pytest.mark.process
def test_ctrl_c_ends_an_answer_and_not_the_conversation(proxy: Proxy) -> None:
    proxy.holds = True
    proxy.events = [delta("Hi\x1b[2J "), delta(reasoning="Hm."), delta("Bob.")]
    with in_terminal("chat", "chat", "-n", "shop") as (process, terminal):
        terminal.until(b"> ")
        terminal.type(b"one\n")
        assert b"Hi[2J \x1b[2mHm.\x1b[0mBob." in terminal.until(b"Bob.")
        terminal.type(b"\x03")
        terminal.until(b"> ")
        assert proxy.gone.wait(10)
        terminal.type(b"two\n")
        terminal.until(b"Bob.")
        terminal.until(b"> ")
        terminal.type(b"\x04")
        assert b"Traceback" not in terminal.rest()
        assert process.wait() == 0
    assert [message["content"] for message in proxy.asked[1]["messages"]] == ["two"]


@pytest.mark.usefixtures("proxy")
def test_ctrl_c_at_the_prompt_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main(["chat", "chat", "-n", "shop"]) == 128 + signal.SIGINT
