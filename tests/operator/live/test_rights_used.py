"""What the operator may do against what the audit log says that it does: no right is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    Manifest,
)

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import OPERATOR_USER
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.plane import OWN_PLANE
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat_that_serves, is_ready, play_controllers

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
BASE: Final = Path(__file__).parents[3] / "manifests" / "base"
CREATED: Final = 201
"""Status of an apply that made the object, for which the API server wants the right to create."""


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    verb: str


RBAC: Final = "rbac.authorization.k8s.io"
SLUICE: Final = "serving.sluice.dev"
OTHERWISE_USED: Final = {
    "by a change of mode (test_disaggregated)": (
        ("", "services delete"), ("networking.k8s.io", "networkpolicies delete"),
        (SLUICE, "enginepools delete"),
    ),
    "where the cluster has the kinds (test_optional_kinds)": tuple(
        (group, f"{kind} {verb}")
        for group, kind in (
            ("monitoring.coreos.com", "podmonitors"),
            ("monitoring.coreos.com", "prometheusrules"),
            ("gateway.networking.k8s.io", "httproutes"),
            ("inference.networking.k8s.io", "inferencepools"),
        )
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    "to ask why a Job has no pod (test_refused)": (("", "pods create"),),
    "by models of a hub": tuple(
        (group, f"{kind} {verb}")
        for group, kind in (("batch", "jobs"), ("", "persistentvolumeclaims"))
        for verb in ("get", "create", "patch", "delete")
    ),
    "by an autoscaler that shrinks a pool (test_autoscaled)": (("", "pods patch"),),
    "of a sixth spec, for the first (test_history)": (("apps", "controllerrevisions delete"),),
    "to keep a service's journal (test_autoscaled), and when a store is in doubt": (
        ("", "configmaps get"), (SLUICE, "enginepools get"),
    ),
    "to own a service's key again (test_lost_owners)": (("", "secrets patch"),),
    "for children that another release has named otherwise": (
        ("", "serviceaccounts delete"), ("policy", "poddisruptionbudgets delete"),
        (RBAC, "roles delete"), (RBAC, "rolebindings delete"),
    ),
    "to name owners where the cluster checks it (OwnerReferencesPermissionEnforcement)": (
        (SLUICE, "inferenceservices/finalizers update"), (SLUICE, "enginepools/finalizers update"),
    ),
    "to be given to routers": tuple(
        ("discovery.k8s.io", f"endpointslices {verb}") for verb in ("get", "list", "watch")
    ),
}  # fmt: skip


def granted() -> set[Right]:
    rules = [
        rule
        for file in ("cluster_role.yaml", "nodes.yaml")
        for document in yaml.safe_load_all((BASE / file).read_text())
        for rule in document.get("rules", ())
    ]
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(audit: AuditLog) -> Iterator[Right]:
    for call in audit.calls():
        if call.user == OPERATOR_USER and call.resource != "leases":
            yield Right(call.group, call.resource, call.verb)
            if call.code == CREATED:
                yield Right(call.group, call.resource, "create")


async def test_every_right_is_used_or_has_a_reason(
    plane: ApiServer,
    cluster: Cluster,
    namespace: str,
    start_operator: Callable[..., OperatorProcess],
) -> None:
    audit = AuditLog(plane.audit_log)
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    await cluster.until(CONTROLLER_REVISION, namespace, lambda found: len(found) == 1)
    edit: Manifest = {"spec": {"engine": {"chunkSize": 256}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await play_controllers(cluster, namespace)
    await cluster.until(INFERENCE_SERVICE, namespace, is_ready())
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 2)
    await cluster.until(CONTROLLER_REVISION, namespace, lambda found: len(found) == 2)
    await comes_to_rest(cluster, namespace)
    assert await operator.terminate() == 0, "the audit log tells of a watch when it ends"

    found = set(used(audit))
    reasons = {
        Right(group, *words.split()) for each in OTHERWISE_USED.values() for group, words in each
    }
    assert granted() - found - reasons == set(), "granted and never used"
    assert found - granted() == set(), "used and not in the files"
    assert reasons - granted() == set(), "a reason for what is not granted"
