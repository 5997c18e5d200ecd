"""The stories' services run where the Pod Security Standard `restricted` is enforced."""

from __future__ import annotations

import json

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE


def test_a_privileged_pod_is_refused_where_the_services_are(
    cluster: Cluster, kubectl: Kubectl, installed_images: dict[str, str]
) -> None:
    if cluster.kind == "current":
        pytest.skip("the namespace of a cluster that others use stays as it is")
    image = installed_images["SLUICE_ROUTER_IMAGE"]
    container = {"name": "a", "image": image, "securityContext": {"privileged": True}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "privileged", "namespace": NAMESPACE},
        "spec": {"containers": [container]},
    }
    with pytest.raises(ClusterError, match='violates PodSecurity "restricted:latest"'):
        kubectl.apply(json.dumps(pod))
