"""Connections by a kubeconfig: as it stands, and with a command that gives the credentials."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kubeconfig import kubeconfig_connection

SECRET = "s3cret"
SERVER = "https://api.example.com"
PRINTS = """
import json, os, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = json.loads(sys.argv[1])
if status.get("token") == "told":
    status["token"] = json.dumps([os.environ["REGION"], asked["spec"]])
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any]) -> dict[str, str]:
    """The environment of a kubeconfig whose current context has this user."""
    named = {
        "contexts": {"context": {"cluster": "c", "user": "u", "namespace": "shop"}},
        "clusters": {"cluster": {"server": SERVER}},
        "users": {"user": user},
    }
    names = {"contexts": "x", "clusters": "c", "users": "u"}
    config = {kind: [{"name": names[kind], **each}] for kind, each in named.items()}
    (folder / "config").write_text(yaml.safe_dump({"current-context": "x", **config}))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    return {"KUBECONFIG": str(folder / "config")}


def asks(status: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A user whose credentials are what a program prints."""
    found = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", PRINTS, json.dumps(status)],
        "env": [{"name": "REGION", "value": "north"}],
    }
    return {"exec": found | more}


def test_a_token_stands_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kubeconfig_connection(written(tmp_path, monkeypatch, {"token": "t"}))
    assert found is not None
    assert (found.server, found.token, found.default_namespace) == (SERVER, "t", "shop")


def test_a_command_gives_a_token_and_is_told_what_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = asks({"token": "told"}, provideClusterInfo=True)
    found = kubeconfig_connection(written(tmp_path, monkeypatch, user))
    assert found is not None
    region, spec = json.loads(str(found.token))
    assert (region, spec["interactive"], spec["cluster"]["server"]) == ("north", False, SERVER)


def test_a_command_gives_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = asks({"clientCertificateData": "CERT", "clientKeyData": "KEY"})
    found = kubeconfig_connection(written(tmp_path, monkeypatch, user))
    assert found is not None
    assert base64.b64decode(found.certificate_data or "") == b"CERT"
    assert base64.b64decode(found.private_key_data or "") == b"KEY"


def test_a_command_beside_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "login"
    program.write_text('#!/bin/sh\necho \'{"status": {"token": "own"}}\'\n')
    program.chmod(0o755)
    found = kubeconfig_connection(written(tmp_path, monkeypatch, asks({}, command="./login")))
    assert found is not None
    assert found.token == "own"


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (asks({}), "has neither a token nor a certificate and key"),
        (asks({}, command="no-such-program"), "no-such-program gives no credentials: FileNotFound"),
        (asks({}, args=["-c", "raise SystemExit(3)", SECRET]), "exit status 3"),
        (asks({}, args=["-c", "print(1)"]), "gives no credentials: TypeError"),
        ({"exec": {"command": "a"}}, "KeyError: 'apiVersion'"),
    ],
)
def test_what_is_wrong_is_named(
    user: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OperatorError) as raised:
        kubeconfig_connection(written(tmp_path, monkeypatch, user))
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "FileNotFoundError"),
        ("{}", "Current context is not set"),
        ("a: [", "ParserError"),
        (f"token: {SECRET}: {{", "mapping values are not allowed here in line 1"),
    ],
)
def test_a_kubeconfig_that_cannot_be_read_is_named(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(OperatorError) as raised:
        kubeconfig_connection({"KUBECONFIG": str(file)})
    assert str(raised.value).startswith(f"kubeconfig {file}: ")
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)
