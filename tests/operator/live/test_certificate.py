"""The Job for admission's certificate, with its rights alone, against a real API server."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import SECRET
from sluice_operator.process.certificate import CONFIGURATION, NAME, is_good, renew

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import OPERATOR_NAMESPACE
from tests.operator.harness.cluster import Cluster, by_kubeconfig
from tests.operator.harness.plane import OWN_PLANE, ROOT

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
FOLDER = ROOT / "manifests" / "admission"
FILES = (
    FOLDER / "webhook" / "webhook.yaml",
    FOLDER / "self-signed" / "secret.yaml",
    FOLDER / "self-signed" / "rights.yaml",
)
WORDS = tuple(word for file in FILES for word in ("-f", str(file)))
HOST = f"{NAME}.{OPERATOR_NAMESPACE}.svc"
NOW = datetime.now(UTC)


@pytest.fixture
def kubeconfig(plane: ApiServer) -> Iterator[Path]:
    """Of the Job's ServiceAccount, in a cluster where all but the Job is installed."""
    plane.kubectl("apply", "--server-side", *WORDS)
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]
    yield plane.user_kubeconfig(f"system:serviceaccount:{OPERATOR_NAMESPACE}:{NAME}", groups)
    plane.kubectl("delete", *WORDS)


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    connection = Connection(10.0, by_kubeconfig(kubeconfig))
    yield ApiClient(connection, lambda verb, plural: None)
    await connection.aclose()


async def secret_files(cluster: Cluster, folder: Path) -> dict[str, str]:
    """What the kubelet would mount, in `folder`."""
    data = (await cluster.get(SECRET, OPERATOR_NAMESPACE, NAME)).get("data") or {}
    files = {name: base64.b64decode(text).decode() for name, text in data.items()}
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


async def trusted(cluster: Cluster) -> list[str]:
    (found,) = await configurations(cluster)
    bundle = base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", "")).decode()
    return re.findall(r"-----BEGIN.+?END CERTIFICATE-----\n", bundle, re.DOTALL)


async def configurations(cluster: Cluster) -> list[dict[str, Any]]:
    found = await cluster.until(CONFIGURATION, None, bool)
    return [each for name, each in found.items() if name == "sluice-operator"]


async def versions(cluster: Cluster) -> list[str]:
    secret = await cluster.get(SECRET, OPERATOR_NAMESPACE, NAME)
    found = [secret, *await configurations(cluster)]
    return [each["metadata"]["resourceVersion"] for each in found]


async def test_it_is_made_kept_and_renewed_in_time(
    cluster: Cluster, client: ApiClient, plane: ApiServer, tmp_path: Path
) -> None:
    await renew(client, tmp_path, OPERATOR_NAMESPACE, NOW)
    first = await secret_files(cluster, tmp_path)
    assert is_good(first["tls.crt"], HOST, NOW + timedelta(days=89))
    assert await trusted(cluster) == [first["tls.crt"]]

    before = await versions(cluster)
    await renew(client, tmp_path, OPERATOR_NAMESPACE, NOW + timedelta(days=59))
    assert await versions(cluster) == before, "there was nothing to do"

    await renew(client, tmp_path, OPERATOR_NAMESPACE, NOW + timedelta(days=61))
    second = await secret_files(cluster, tmp_path)
    assert second["tls.crt"] != first["tls.crt"]
    both = [second["tls.crt"], first["tls.crt"]]
    assert await trusted(cluster) == both, "until every replica has the second"

    before = await versions(cluster)
    plane.kubectl("apply", "--server-side", *WORDS)
    assert await versions(cluster) == before, "another apply of the install takes nothing away"


async def test_what_the_api_server_trusts_is_set_right(
    cluster: Cluster, client: ApiClient, tmp_path: Path
) -> None:
    await renew(client, tmp_path, OPERATOR_NAMESPACE, NOW)
    files = await secret_files(cluster, tmp_path)
    emptied = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    await cluster.patch(CONFIGURATION, None, "sluice-operator", emptied)
    assert await trusted(cluster) == []
    await renew(client, tmp_path, OPERATOR_NAMESPACE, NOW)
    assert await trusted(cluster) == [files["tls.crt"]]
    assert await secret_files(cluster, tmp_path) == files


async def test_it_may_do_nothing_else(client: ApiClient) -> None:
    with pytest.raises(ApiError, match="403"):
        await client.get(SECRET, OPERATOR_NAMESPACE, NAME)
    with pytest.raises(ApiError, match="403"):
        await client.list_objects(CONFIGURATION, None)


async def test_the_program_is_what_the_job_runs(
    cluster: Cluster, kubeconfig: Path, tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "SLUICE_ADMISSION_FOLDER": str(tmp_path),
        "POD_NAMESPACE": OPERATOR_NAMESPACE,
    }
    words = (sys.executable, "-m", "sluice_operator.process.certificate")
    program = await asyncio.create_subprocess_exec(*words, env=environment)
    assert await program.wait() == 0
    assert await trusted(cluster) == [(await secret_files(cluster, tmp_path))["tls.crt"]]
    environment["KUBECONFIG"] = str(tmp_path / "nothing")
    program = await asyncio.create_subprocess_exec(*words, env=environment)
    assert await program.wait() == 1
