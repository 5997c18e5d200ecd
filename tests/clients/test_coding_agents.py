"""Whole turns of Codex and of Claude Code, the programs themselves, against an engine: each calls a
tool and is answered. The model cannot do that: the call is forced, and what is shown is the
protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from e2e.cluster.toolchain.cache import cache_directory
from tests.clients.environments import VARIABLES
from tests.runtime.launch.processes import program, running, write_config

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("clients"), pytest.mark.timeout(900)]

CODEX: Final = "@openai/codex@0.169.0"
CLAUDE_CODE: Final = "@anthropic-ai/claude-code@2.1.197"
FOLDER: Final = Path("e2e/model/sluice-tiny")
CONTEXT_TOKENS: Final = 65_536
"""The programs' own prompts are 13,000 and 20,000 bytes, which are as many tokens."""
_CALLS: Final = (
    '<tool_call>\n{"name": "multi_agent_v1__close_agent", "arguments": {"target": "nobody"}}\n</'
    '{"name": "TaskList"}\t\r'
)
ENDS: Final = [256, *sorted(set(range(256)) - set(_CALLS.encode()))]
"""Tokens that end an answer, since this model does not know when: all but those of the calls,
and white space, which a call may have anywhere."""
QUESTION: Final = "copy: hello"
SECONDS: Final = 400.0

Body = dict[str, Any]


def installed(package: str, binary: str) -> Path:
    """A program of npm's, which is installed on first use."""
    folder = cache_directory() / "peers" / package.strip("@").replace("/", "-")
    path = folder / "node_modules" / ".bin" / binary
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not here")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), package]
        subprocess.run(command, check=True, timeout=SECONDS)
    return path


def long_model(folder: Path) -> Path:
    """The small model with a context that such prompts fit; beyond its own it says nothing
    sensible."""
    model = folder / "model"
    shutil.copytree(FOLDER, model)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((model / name).read_text()) | {"eos_token_id": ENDS}
        if name == "config.json":
            settings["max_position_embeddings"] = CONTEXT_TOKENS
        (model / name).write_text(json.dumps(settings))
    return model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("agents")
    config = write_config(
        folder,
        model={"uri": f"file://{long_model(folder)}", "name": "qwen3"},
        toolCallFormat="hermes",
        contextLength=CONTEXT_TOKENS,
        kvPoolTokens=CONTEXT_TOKENS + 4096,
    )
    with running(program(config)) as process:
        yield process.ready_url()


class _Forcing(BaseHTTPRequestHandler):
    """Passes requests on; the first is made to call a tool."""

    engine: str
    force: Callable[[Body], Body]
    requests: list[Body]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(body)
        if len(self.requests) == 1:
            body = type(self).force(body)
        answer = httpx.post(self.engine + self.path, json=body, timeout=SECONDS)
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def forcing(engine: str, force: Callable[[Body], Body]) -> Iterator[tuple[str, list[Body]]]:
    """The URL of a server before the engine, and the bodies that come to it."""
    requests: list[Body] = []
    own = {"engine": engine, "requests": requests, "force": staticmethod(force)}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Forcing,), own)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def said(command: list[Any], folder: Path, variables: Mapping[str, str]) -> list[Body]:
    """What a program writes, by line."""
    done = subprocess.run(
        command,
        env={**os.environ, **VARIABLES, **variables},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def close_nobody(body: Body) -> Body:
    """The request, with a call of Codex's `close_agent` and one target to choose from."""
    only = {"target": {"enum": ["nobody"]}}
    schema = {"type": "object", "properties": only, "required": ["target"]}
    (namespace,) = (tool for tool in body["tools"] if tool["type"] == "namespace")
    (own,) = (tool for tool in namespace["tools"] if tool["name"] == "close_agent")
    own["parameters"] = schema
    called = {"type": "function", "namespace": namespace["name"], "name": own["name"]}
    return body | {"tool_choice": called}


def test_codex_calls_a_tool_and_is_answered(engine: str, tmp_path: Path) -> None:
    binary = installed(CODEX, "codex")
    with forcing(engine, close_nobody) as (url, requests):
        provider = {"name": "Sluice", "base_url": f"{url}/v1", "wire_api": "responses"}
        settings = {"model": "qwen3", "model_provider": "sluice"}
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        lines += ["[model_providers.sluice]", "request_max_retries = 0", "stream_max_retries = 0"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in provider.items()]
        (tmp_path / "config.toml").write_text("\n".join(lines))
        command = [binary, "exec", "--json", "--skip-git-repo-check", "-s", "read-only", QUESTION]
        events = said(command, tmp_path, {"CODEX_HOME": str(tmp_path)})
    assert events[-1]["type"] == "turn.completed", events
    assert events[-1]["usage"]["output_tokens"] > 0
    first, second = requests
    assert {"function", "namespace", "web_search"} <= {tool["type"] for tool in first["tools"]}
    made, outcome = (item for item in second["input"] if item["type"].startswith("function_call"))
    assert (made["namespace"], made["name"]) == ("multi_agent_v1", "close_agent")
    assert json.loads(made["arguments"]) == {"target": "nobody"}
    assert outcome["call_id"] == made["call_id"]
    assert "nobody" in str(outcome["output"]), "Codex ran the call"


def list_tasks(body: Body) -> Body:
    """The request, with a call of Claude Code's `TaskList`."""
    return body | {"tool_choice": {"type": "tool", "name": "TaskList"}}


def test_claude_code_calls_a_tool_and_is_answered(engine: str, tmp_path: Path) -> None:
    binary = installed(CLAUDE_CODE, "claude")
    with forcing(engine, list_tasks) as (url, requests):
        variables = {
            "HOME": str(tmp_path),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "qwen3",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "qwen3",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = [binary, "-p", QUESTION, "--output-format", "json"]
        (result,) = said(command, tmp_path, variables)
    assert (result["type"], result["is_error"], result["num_turns"]) == ("result", False, 2), result
    assert result["usage"]["output_tokens"] > 0
    _, second = requests[:2]
    blocks = [
        block
        for message in second["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    (made,) = (block for block in blocks if block["type"] == "tool_use")
    assert (made["name"], made["input"]) == ("TaskList", {})
    (outcome,) = (block for block in blocks if block["type"] == "tool_result")
    assert outcome["tool_use_id"] == made["id"]
