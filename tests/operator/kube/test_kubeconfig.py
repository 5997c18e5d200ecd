"""Log-in by a kubeconfig: what of it is used, and what is said of one that cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.kube.connection import LogIn, log_in
from sluice_operator.kube.errors import OperatorError

SECRET = "s3cret"
SERVER = "http://api.example.com"
PRINTS = """
import json, os, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = json.loads(sys.argv[1])
if status.get("token") == "told":
    status["token"] = os.environ["REGION"]
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


async def logged_in(folder: Path, user: dict[str, Any], server: str = SERVER) -> LogIn:
    """With a kubeconfig whose current context has this user."""
    named = {
        "contexts": {"context": {"cluster": "c", "user": "u", "namespace": "shop"}},
        "clusters": {"cluster": {"server": server}},
        "users": {"user": user},
    }
    names = {"contexts": "x", "clusters": "c", "users": "u"}
    config = {kind: [{"name": names[kind], **each}] for kind, each in named.items()}
    (folder / "config").write_text(yaml.safe_dump({"current-context": "x", **config}))
    return await log_in({"KUBECONFIG": str(folder / "config")})


def asks(status: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A user whose credentials are what a program prints."""
    found = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", PRINTS, json.dumps(status)],
        "env": [{"name": "REGION", "value": "north"}],
    }
    return {"exec": found | more}


def text_of(file: str | None) -> str:
    assert file is not None
    return Path(file).read_text()


async def test_the_current_context_is_used(tmp_path: Path) -> None:
    found = await logged_in(tmp_path, {"token": "t"})
    assert (found.configuration.host, found.namespace) == (SERVER, "shop")
    assert found.configuration.api_key["BearerToken"] == "Bearer t"


async def test_a_command_gives_a_token(tmp_path: Path) -> None:
    found = await logged_in(tmp_path, asks({"token": "told"}))
    assert found.configuration.api_key["BearerToken"] == "Bearer north"


async def test_a_command_gives_a_certificate(tmp_path: Path) -> None:
    status = {"clientCertificateData": "CERT", "clientKeyData": "KEY"}
    found = (await logged_in(tmp_path, asks(status), "https://api.example.com")).configuration
    assert [text_of(file) for file in (found.cert_file, found.key_file)] == ["CERT", "KEY"]


@pytest.mark.parametrize(
    "user",
    [
        {},
        asks({}),
        asks({}, command="no-such-program"),
        asks({}, args=["-c", "raise SystemExit(3)", SECRET]),
        {"exec": {"command": "a"}},
    ],
)
async def test_a_server_with_tls_is_not_asked_without_credentials(
    user: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OperatorError, match="the command for them failed"):
        await logged_in(tmp_path, user, "https://api.example.com")
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "neither a service account nor a kubeconfig"),
        ("", "not a kubeconfig"),
        ("{}", "Expected key current-context"),
        ("a: [", "ParserError"),
        (f"token: {SECRET}: {{", "mapping values are not allowed here in line 1"),
        (
            yaml.safe_dump(
                {
                    "current-context": "x",
                    "contexts": [{"name": "x", "token": SECRET}],
                    "clusters": [],
                    "users": [],
                }
            ),
            "Expected key context in ",
        ),
    ],
)
async def test_a_kubeconfig_that_cannot_be_read_is_named(
    text: str | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OperatorError) as raised:
        await log_in({"KUBECONFIG": str(file)})
    assert f"kubeconfig {file}" in str(raised.value)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)
