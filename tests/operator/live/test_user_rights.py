"""What people may do with Sluice's kinds who have one of the cluster's roles in a namespace."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest
from sluice_contract.cluster.labels import GROUP
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import Request
from sluice_operator.kube.kinds import ROLE_BINDING, Kind

from tests.operator.harness.cluster import Cluster
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
REVIEW: Final = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews")
LOOK: Final = ("get inferenceservices", "list enginepools", "get inferenceservices/scale")
CHANGE: Final = (
    "create inferenceservices",
    "delete inferenceservices",
    "patch inferenceservices/scale",
    "patch controllerrevisions.apps",
)
NEVER: Final = ("patch enginepools", "create enginepools", "patch inferenceservices/status")
"""That is the operator's."""


async def may(cluster: Cluster, namespace: str, user: str, what: str) -> bool:
    verb, _, rest = what.partition(" ")
    named, _, subresource = rest.partition("/")
    resource, _, group = named.partition(".")
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": group or GROUP,
        "resource": resource,
        "subresource": subresource,
    }
    body = {
        "apiVersion": REVIEW.api_version,
        "kind": REVIEW.kind,
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = await cluster.send(Request("POST", path(REVIEW, None), body=body))
    return bool(answer["status"]["allowed"])


async def until_may(cluster: Cluster, namespace: str, user: str, what: str) -> None:
    """The controller aggregates in its own time, and no object of the namespace tells when."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await may(cluster, namespace, user, what):
        assert time.monotonic() < deadline, f"{user} may never {what}"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        ("view", LOOK, (*CHANGE, *NEVER)),
        ("edit", (*LOOK, *CHANGE), NEVER),
        ("admin", (*LOOK, *CHANGE), NEVER),
    ],
)
async def test_the_roles_of_the_cluster_cover_inference_services(
    cluster: Cluster,
    namespace: str,
    role: str,
    allowed: tuple[str, ...],
    refused: tuple[str, ...],
) -> None:
    user = f"{role}-of-{namespace}"
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    await cluster.create(ROLE_BINDING, binding)
    for what in allowed:
        await until_may(cluster, namespace, user, what)
    for what in refused:
        assert not await may(cluster, namespace, user, what), what
