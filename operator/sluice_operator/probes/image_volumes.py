"""Whether the API server lets pods mount images as volumes, tested with a dry-run Deployment.

An API server that does not know image volumes, or has the feature gate off, drops the field. It is
asked at most every ten minutes, so an upgrade of the cluster is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sluice_operator.clock import Clock
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import ApiError, RequestError
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest
from sluice_operator.log import fields

REFRESH_SECONDS: Final = 600.0
NAME: Final = "sluice-image-volume-probe"

logger = logging.getLogger(__name__)


class ImageVolumes:
    """Whether the API server accepts image volumes, asked in `namespace`."""

    def __init__(self, client: ApiClient, clock: Clock, namespace: str) -> None:
        self._client = client
        self._clock = clock
        self._probe = _deployment(namespace)
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None
        self._accepted = False

    async def accepted(self) -> bool:
        """Whether pods with image volumes are accepted. If asking fails: the last answer, or False
        without any."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked_at is None or now - self._asked_at >= REFRESH_SECONDS:
                try:
                    self._accepted = await self._is_kept()
                except RequestError as error:
                    logger.warning("image volumes are not known", extra=fields(error=error))
                self._asked_at = now
            return self._accepted

    async def _is_kept(self) -> bool:
        """Whether the volume would still be an image in what the API server stores."""
        try:
            stored = await self._client.would_create(DEPLOYMENT, self._probe)
        except ApiError as error:
            if error.status not in (400, 422):
                raise
            return False
        volumes = stored["spec"]["template"]["spec"].get("volumes") or ()
        return any("image" in volume for volume in volumes)


def _deployment(namespace: str) -> Manifest:
    """A Deployment without pods, and restricted, so that no admission refuses it for another
    reason."""
    marks = {"app.kubernetes.io/name": NAME}
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "probe", "image": "probe", "securityContext": security}
    volume = {"name": "image", "image": {"reference": "probe"}}
    pod = {"containers": [container], "volumes": [volume]}
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": marks},
            "template": {"metadata": {"labels": marks}, "spec": pod},
        },
    }
