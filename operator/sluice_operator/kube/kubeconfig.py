"""A connection by the kubeconfig's current context: Kopf reads it, and a command that it names for
credentials (`exec`, client.authentication.k8s.io), as those of the large clouds do, is run here."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import kopf
import yaml

from sluice_operator.kube.errors import OperatorError

EXEC_SECONDS: Final = 60
"""It may ask a cloud for a token, but no person for a password."""


@dataclass(frozen=True)
class Command:
    """A program that gives credentials."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to this process's."""
    api_version: str
    wants_cluster: bool


def kubeconfig_connection(environment: Mapping[str, str]) -> kopf.ConnectionInfo | None:
    """The current context's connection; None: there is no kubeconfig.

    Raises:
        OperatorError: it cannot be read, or its command gives no credentials.
    """
    try:
        connection = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
        command = None if connection is None else _command(environment)
    except yaml.YAMLError as error:
        raise _unreadable(environment, _syntax(error)) from None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise _unreadable(environment, f"{type(error).__name__}: {error}") from None
    except kopf.LoginError as error:
        raise _unreadable(environment, str(error)) from None
    if connection is None or command is None:
        return connection
    return _with_credentials(connection, command, environment)


def _unreadable(environment: Mapping[str, str], why: str) -> OperatorError:
    return OperatorError(f"kubeconfig {_places(environment)}: {' '.join(why.split())}")


def _syntax(error: yaml.YAMLError) -> str:
    """Without the line itself, which may hold a token."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return type(error).__name__
    return f"{type(error).__name__}: {error.problem} in line {error.problem_mark.line + 1}"


def _places(environment: Mapping[str, str]) -> str:
    return environment.get("KUBECONFIG") or "~/.kube/config"


def _command(environment: Mapping[str, str]) -> Command | None:
    """`exec` of the current context's user. As in Kopf, the first file that names a thing wins."""
    current, contexts, users = None, dict[str, Any](), dict[str, Any]()
    for folder, config in _files(environment):
        current = current or config.get("current-context")
        for item in config.get("contexts") or ():
            contexts.setdefault(item["name"], item.get("context") or {})
        for item in config.get("users") or ():
            users.setdefault(item["name"], (folder, item.get("user") or {}))
    folder, user = users[contexts[str(current)]["user"]]
    if (found := user.get("exec")) is None:
        return None
    words = [found["command"], *(found.get("args") or ())]
    if os.sep in words[0]:
        words[0] = str(folder / words[0])
    added = {each["name"]: each["value"] for each in found.get("env") or ()}
    wants_cluster = bool(found.get("provideClusterInfo"))
    return Command(tuple(words), added, found["apiVersion"], wants_cluster)


def _files(environment: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for place in _places(environment).split(os.pathsep):
        if place.strip():
            path = Path(place.strip()).expanduser()
            yield path.parent, yaml.safe_load(path.read_text()) or {}


def _with_credentials(
    connection: kopf.ConnectionInfo, command: Command, environment: Mapping[str, str]
) -> kopf.ConnectionInfo:
    cluster: dict[str, Any] = {"server": connection.server}
    if connection.ca_data:
        cluster["certificate-authority-data"] = connection.ca_data
    asked = {"interactive": False, **({"cluster": cluster} if command.wants_cluster else {})}
    told = _run(command, asked, environment)
    certificate, key = told.get("clientCertificateData"), told.get("clientKeyData")
    if not told.get("token") and not (certificate and key):
        raise _no_credentials(command, "its answer has neither a token nor a certificate and key")
    if certificate and key:
        certificate, key = (b64encode(pem.encode()).decode() for pem in (certificate, key))
    return replace(
        connection, token=told.get("token"), certificate_data=certificate, private_key_data=key
    )


def _run(
    command: Command, asked: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """`status` of the command's ExecCredential. Its stderr is for the person at the terminal."""
    question = {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": asked}
    told = {"KUBERNETES_EXEC_INFO": json.dumps(question)}
    try:
        done = subprocess.run(
            command.words,
            env={**environment, **command.environment, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=EXEC_SECONDS,
            check=True,
            text=True,
        )
        return dict(json.loads(done.stdout)["status"])
    # Not the errors' own words: these repeat the arguments, which may hold a secret.
    except subprocess.CalledProcessError as error:
        raise _no_credentials(command, f"exit status {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise _no_credentials(command, f"no answer within {EXEC_SECONDS} seconds") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _no_credentials(command, f"{type(error).__name__}: {error}") from None


def _no_credentials(command: Command, why: str) -> OperatorError:
    return OperatorError(f"kubeconfig: {command.words[0]} gives no credentials: {why}")
