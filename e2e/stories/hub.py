"""A hub and a bucket in the cluster, with the small trained model: as repository `sluice/tiny`,
with adapters `sluice/poems` and `sluice/law`, and at `s3://models/sluice/tiny`.

Their pod runs the sample engine's image, which has Python and the model; its code comes from a
ConfigMap. Knows nothing of services that fetch from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.install import ROOT
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE

NAME: Final = "hub"
REPOSITORY: Final = "sluice/tiny"
PORT: Final = 8080
STATE_PORT: Final = 8081
BUCKET_PORT: Final = 8082
ENDPOINT: Final = f"http://{NAME}.{NAMESPACE}.svc:{PORT}"
BUCKET_ENDPOINT: Final = f"http://{NAME}.{NAMESPACE}.svc:{BUCKET_PORT}"
STATE: Final = f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}:{STATE_PORT}/proxy/state"
CODE: Final = (
    "e2e/stories/hub_pod.py",
    "e2e/stories/adapters.py",
    "e2e/stories/padded.py",
    "tests/fetch/bucket_server.py",
    "tests/fetch/hub_server.py",
)
MODEL_FOLDER: Final = "/models/sluice-tiny"


class Hub:
    """The hub as a story handles it; its model has `more_bytes` more than the small one."""

    def __init__(self, kubectl: Kubectl, image: str, more_bytes: int = 0) -> None:
        self._kubectl = kubectl
        self._image = image
        self._more_bytes = more_bytes

    def start(self) -> None:
        """Starts the hub. Raises ClusterError if it does not come up."""
        self._kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": self._items}))
        words = ("rollout", "status", f"deployment/{NAME}", "-n", NAMESPACE, "--timeout=120s")
        self._kubectl.run(*words)

    def stop(self) -> None:
        kinds = "deployments,services,configmaps"
        self._kubectl.run("delete", kinds, "-n", NAMESPACE, "-l", f"app={NAME}")

    def set(self, **state: Any) -> None:
        """Sets how the hub answers: `revisions` (name → commit), `refusals` (status and headers of
        the next answers), `token` (without it content is gated), `damage`, `ends_after`. Clears the
        record of requests."""
        self._kubectl.run("create", "--raw", STATE, "-f", "-", stdin=json.dumps(state))

    def requests(self, *beginnings: str) -> list[str]:
        """Paths that the hub was asked for since `set` and that begin with one of `beginnings`."""
        asked: list[str] = self._state()["requests"]
        return [path for path in asked if path.startswith(beginnings or "/")]

    def bucket_requests(self) -> list[str]:
        """Paths, with the query, that the bucket was asked for since `set`."""
        return list(self._state()["bucket_requests"])

    def sent_bytes(self) -> int:
        """Bytes of all the hub's answers since `set`."""
        return int(self._state()["sent_bytes"])

    def revisions(self) -> dict[str, str]:
        """Revisions of the hub's repository: name → commit."""
        return dict(self._state()["revisions"])

    def _state(self) -> dict[str, Any]:
        return dict(json.loads(self._kubectl.run("get", "--raw", STATE)))

    @property
    def _items(self) -> list[dict[str, Any]]:
        files = {Path(path).name: (ROOT / path).read_text() for path in CODE}
        ports = [("hub", PORT), ("state", STATE_PORT), ("bucket", BUCKET_PORT)]
        service = {
            "selector": {"app": NAME},
            "ports": [{"name": name, "port": port} for name, port in ports],
        }
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(NAME), "data": files},
            *(
                {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name)}
                | {"spec": service}
                for name in (NAME, f"{NAME}-files")
            ),
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(NAME)}
            | {"spec": self._deployment()},
        ]

    def _deployment(self) -> dict[str, Any]:
        container = {
            "name": NAME,
            "image": self._image,
            "command": ["python", "-m", "e2e.stories.hub_pod", MODEL_FOLDER, str(self._more_bytes)],
            "env": [{"name": "PYTHONPATH", "value": "/code"}],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
            "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        items = [{"key": Path(path).name, "path": path} for path in CODE]
        pod = {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "code", "configMap": {"name": NAME, "items": items}}],
        }
        template = {"metadata": {"labels": {"app": NAME}}, "spec": pod}
        return {"selector": {"matchLabels": {"app": NAME}}, "template": template}


@contextmanager
def serving_hub(kubectl: Kubectl, image: str, more_bytes: int = 0) -> Iterator[Hub]:
    """A hub and a bucket from which the operator has models fetched until the block ends."""
    hub = Hub(kubectl, image, more_bytes)
    operator = ("deployment/sluice-operator", "-n", OPERATOR_NAMESPACE)
    hub.start()
    try:
        endpoints = (f"SLUICE_HUB_ENDPOINT={ENDPOINT}", f"SLUICE_BUCKET_ENDPOINT={BUCKET_ENDPOINT}")
        kubectl.run("set", "env", *operator, *endpoints)
        kubectl.run("rollout", "status", *operator, "--timeout=120s")
        yield hub
    finally:
        kubectl.run("set", "env", *operator, "SLUICE_HUB_ENDPOINT-", "SLUICE_BUCKET_ENDPOINT-")
        hub.stop()


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "labels": {"app": NAME}}
