"""What the operator would refuse is refused as it is applied, while somebody is there to ask."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import APPLY, Request, Response
from sluice_operator.kube.kinds import INFERENCE_SERVICE
from sluice_operator.process.certificate import CONFIGURATION, self_signed

from e2e.cluster.bare.certs import Certificate, create_authority, issue
from e2e.cluster.controlplane_only import ApiServer
from e2e.cluster.ports import free_ports
from tests.operator.conftest import OPERATOR_USER
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.plane import OWN_PLANE, ROOT
from tests.operator.harness.process import ADDRESS, OperatorProcess
from tests.operator.harness.scenery import chat
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
StartOperator = Callable[..., OperatorProcess]
ADMISSION = ROOT / "manifests" / "admission"
BAD: dict[str, Any] = {"engine": {"tensorParallelSize": 2}, "slo": {"percentile": 90}}
"""No schema refuses it, and the operator would with two findings."""


class Served:
    """Where the operator serves, and what it has for certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "serving"
        self.folder.mkdir()
        self.authority = create_authority(folder / "pki", "admission")
        (self.port,) = free_ports(1, ADDRESS)
        self._issued = 0
        self.renew()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SLUICE_ADMISSION_PORT": str(self.port),
            "SLUICE_ADMISSION_FOLDER": str(self.folder),
        }

    def url(self, host: str = ADDRESS) -> str:
        return f"https://{host}:{self.port}/{INFERENCE_SERVICE.plural}"

    def renew(self) -> Certificate:
        """Another certificate of the same authority."""
        self._issued += 1
        pki, name = self.authority.certificate.parent, f"serving-{self._issued}"
        made = issue(self.authority, pki, name, user=name, hosts=[ADDRESS])
        (self.folder / "tls.key").write_bytes(made.key.read_bytes())
        (self.folder / "tls.crt").write_bytes(made.certificate.read_bytes())
        return made

    async def until(self, certificate: Certificate) -> None:
        """Returns once it is the one that is served."""
        wanted = ssl.PEM_cert_to_DER_cert(certificate.certificate.read_text())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._shown() != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _shown(self) -> bytes | None:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        with suppress(OSError):
            _, writer = await asyncio.open_connection(ADDRESS, self.port, ssl=context)
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return shown
        return None


def configuration(served: Served, namespace: str) -> dict[str, Any]:
    """The install's, for one namespace and an address."""
    documents = yaml.safe_load_all((ADMISSION / "webhook" / "webhook.yaml").read_text())
    found: dict[str, Any] = next(each for each in documents if each["kind"] == CONFIGURATION.kind)
    (webhook,) = found["webhooks"]
    url = served.url()
    assert url.endswith(webhook["clientConfig"]["service"]["path"])
    webhook["clientConfig"] = {
        "url": url,
        "caBundle": base64.b64encode(served.authority.certificate.read_bytes()).decode(),
    }
    webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return found


@pytest.fixture
async def served(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Served]:
    """The webhook is configured, and nobody serves it yet."""
    served = Served(tmp_path)
    made = await cluster.create(CONFIGURATION, configuration(served, namespace))
    yield served
    await cluster.delete(CONFIGURATION, None, made["metadata"]["name"])


async def apply(cluster: Cluster, item: dict[str, Any], **query: str) -> Response:
    metadata = item["metadata"]
    target = path(INFERENCE_SERVICE, metadata["namespace"], metadata["name"])
    options = {"fieldManager": "person", "force": "true", **query}
    return await cluster.try_send(Request("PATCH", target, options, item, APPLY))


async def until_refused(cluster: Cluster, namespace: str, name: str = "chat") -> str:
    """The message, once the API server knows of the webhook and the operator serves it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = await apply(cluster, chat(namespace, name, **BAD), dryRun="All")
            if answer.status == 422:
                return str(answer.body["message"])
            assert answer.status == 201, answer
            await asyncio.sleep(0.05)


async def test_a_bad_spec_is_refused_with_every_finding_on_a_line(
    cluster: Cluster,
    namespace: str,
    served: Served,
    start_operator: StartOperator,
    plane: ApiServer,
) -> None:
    audit = AuditLog(plane.audit_log)
    operator = start_operator(**served.environment)
    head, *findings = (await until_refused(cluster, namespace)).splitlines()
    assert head.startswith('admission webhook "inferenceservices.serving.sluice.dev" denied')
    fields = ["spec.slo", "spec.engine.tensorParallelSize"]
    assert [finding.strip().partition(": ")[0] for finding in findings] == fields
    assert all("; allowed: " in finding for finding in findings)
    assert (await apply(cluster, chat(namespace, **BAD))).status == 422
    assert (await apply(cluster, chat(namespace))).status == 201
    assert operator.running
    calls = [call for call in audit.calls() if call.user == OPERATOR_USER]
    assert calls
    assert {call.resource for call in calls if call.code == 403} == set()
    read = {call.resource for call in calls} & {"secrets", CONFIGURATION.plural}
    assert read == set(), "the certificate is a file, the configuration is the install's"


async def test_kubectl_says_so_in_a_dry_run_too(
    cluster: Cluster,
    namespace: str,
    served: Served,
    start_operator: StartOperator,
    plane: ApiServer,
    tmp_path: Path,
) -> None:
    start_operator(**served.environment)
    await until_refused(cluster, namespace)
    file = tmp_path / "chat.yaml"
    file.write_text(json.dumps(chat(namespace, **BAD)))
    for options in ([], ["--dry-run=server"], ["--server-side"]):
        process = await asyncio.create_subprocess_exec(
            *plane.kubectl_argv("apply", "-f", str(file), *options),
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await process.communicate()
        assert process.returncode == 1
        assert b"\n  spec.slo: " in told
        assert b"\n  spec.engine.tensorParallelSize: 2 " in told


async def test_a_standby_serves_as_well(
    cluster: Cluster, namespace: str, served: Served, start_operator: StartOperator
) -> None:
    leader = start_operator("leader")
    await leader.leads(cluster)
    start_operator("standby", **served.environment)
    await until_refused(cluster, namespace)


async def test_what_was_accepted_can_be_changed_in_other_fields_and_deleted(
    cluster: Cluster, namespace: str, served: Served, start_operator: StartOperator
) -> None:
    assert (await apply(cluster, chat(namespace, **BAD))).status == 201, "nobody is there to ask"
    await cluster.patch(
        INFERENCE_SERVICE, namespace, "chat", {"metadata": {"finalizers": ["example.com/keep"]}}
    )
    operator = start_operator(**served.environment)
    await until_refused(cluster, namespace, "other")
    metadata = {"labels": {"team": "search"}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"metadata": metadata})
    router = {"router": {"replicas": 3}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": router})
    worse = {"spec": {"engine": {"cudaGraphMaxBatch": 8}}}
    target = path(INFERENCE_SERVICE, namespace, "chat")
    request = Request("PATCH", target, {}, worse, "application/merge-patch+json")
    refused = await cluster.try_send(request)
    assert refused.status == 422
    (finding,) = refused.body["message"].splitlines()[1:]
    assert finding.strip().startswith("spec.engine.cudaGraphMaxBatch: 8 ")
    found = await cluster.until(INFERENCE_SERVICE, namespace, _is_told)
    assert found["chat"]["spec"]["router"] == router["router"]
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"metadata": {"finalizers": None}})
    await cluster.until(INFERENCE_SERVICE, namespace, lambda found: not found)
    assert operator.running


def _is_told(found: dict[str, Any]) -> bool:
    """Its status was written, which says that it is refused."""
    conditions = (found["chat"].get("status") or {}).get("conditions") or []
    return any(each["type"] == "Stalled" and each["status"] == "True" for each in conditions)


async def test_while_nobody_serves_all_is_accepted_as_without_it(
    cluster: Cluster, namespace: str, served: Served, start_operator: StartOperator
) -> None:
    operator = start_operator(**served.environment)
    await until_refused(cluster, namespace)
    assert await operator.terminate() == 0
    assert (await apply(cluster, chat(namespace, **BAD))).status == 201


async def test_a_renewed_certificate_is_taken_without_a_restart(
    cluster: Cluster, namespace: str, served: Served, start_operator: StartOperator
) -> None:
    operator = start_operator(**served.environment)
    await until_refused(cluster, namespace)
    renewed = asyncio.create_task(served.until(served.renew()))
    while not renewed.done():
        answer = await apply(cluster, chat(namespace, **BAD), dryRun="All")
        assert answer.status == 422, "no request may be lost meanwhile"
    await renewed
    assert (await apply(cluster, chat(namespace, **BAD))).status == 422
    assert operator.running


async def test_a_certificate_of_the_job_is_one_that_the_api_server_trusts(
    cluster: Cluster, namespace: str, served: Served, start_operator: StartOperator
) -> None:
    pair = self_signed("sluice-operator-admission", "localhost", 90)
    (served.folder / "tls.key").write_text(pair.key)
    (served.folder / "tls.crt").write_text(pair.certificate)
    bundle = base64.b64encode(pair.certificate.encode()).decode()
    trusted = [
        {"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": served.url("localhost")},
        {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle},
    ]
    await cluster.patch(CONFIGURATION, None, "sluice-operator", trusted)
    start_operator(**served.environment, POD_IP="127.0.0.1")
    await until_refused(cluster, namespace)


async def test_it_waits_for_a_certificate_and_works_meanwhile(
    cluster: Cluster, namespace: str, served: Served, start_operator: StartOperator
) -> None:
    for file in served.folder.iterdir():
        file.unlink()
    operator = start_operator(**served.environment)
    await operator.leads(cluster)
    assert (await apply(cluster, chat(namespace, **BAD))).status == 201
    assert "no certificate for admission yet" in operator.log.read_text()
    served.renew()
    await until_refused(cluster, namespace, "other")
