"""A bare cluster runs pods as any cluster does. One cluster for all tests of this file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from e2e.cluster.bare.containerd import ctr_argv, write_static_image
from e2e.cluster.bare.node_process import find_node
from e2e.cluster.bare.state import known_layout, state_directory
from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.loaded_images import are_loaded
from e2e.cluster.providers.bare import BareCluster
from tests.busy_machine import BusyMachine
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
NAMESPACE = "probe"
LABELS = {"app": "probe"}
CONTAINER = {
    "name": "probe",
    "image": "sluice.local/probe:1",
    "args": ["serve"],
    "readinessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1},
    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}],
}
POD = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65535,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [CONTAINER],
    "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
}
OBJECTS = [
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "probe", "namespace": NAMESPACE},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": POD},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "probe", "namespace": NAMESPACE},
        "spec": {"selector": LABELS, "ports": [{"port": 80, "targetPort": 8080}]},
    },
]


@pytest.fixture(scope="module")
def probes(cluster: BareCluster) -> BareCluster:
    """The cluster with two probes behind a Service."""
    text = yaml.safe_dump_all(OBJECTS)
    run(cluster.kubectl_argv("apply", "-f", "-"), stdin=text)
    wait_for_probes(cluster)
    return cluster


def kubectl(cluster: BareCluster, *words: str) -> str:
    return run(cluster.kubectl_argv("--namespace", NAMESPACE, *words))


def wait_for_probes(cluster: BareCluster) -> None:
    kubectl(cluster, "rollout", "status", "deployment/probe", "--timeout=120s")


def pod_names(cluster: BareCluster) -> set[str]:
    listed = kubectl(cluster, "get", "pods", "-o", "name").split()
    return {name.removeprefix("pod/") for name in listed}


def fetch(url: str) -> str:
    """The answer; tried again for a while: the node's rules follow a change of a Service."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode().strip())
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def service_address(cluster: BareCluster) -> str:
    return kubectl(cluster, "get", "service", "probe", "-o", "jsonpath={.spec.clusterIP}")


def test_the_host_reaches_pods_and_the_service(probes: BareCluster) -> None:
    url = f"http://{service_address(probes)}/"
    answered = {fetch(url) for _ in range(40)}
    assert answered == pod_names(probes)
    pods = json.loads(kubectl(probes, "get", "pods", "-o", "json"))["items"]
    for pod in pods:
        assert fetch(f"http://{pod['status']['podIP']}:8080/") == pod["metadata"]["name"]


def test_pods_reach_the_service_by_its_name(probes: BareCluster) -> None:
    names = pod_names(probes)
    command = ["--", "/probe", "get", f"http://probe.{NAMESPACE}.svc.cluster.local/"]
    # Many calls from one pod: some reach the other one, some come back to the caller itself.
    answered = {kubectl(probes, "exec", sorted(names)[0], *command).strip() for _ in range(20)}
    assert answered == names


def test_logs_are_shown(probes: BareCluster) -> None:
    assert kubectl(probes, "logs", "deployment/probe").strip() == "serving"


def test_a_port_is_forwarded(probes: BareCluster) -> None:
    argv = probes.kubectl_argv("port-forward", "-n", NAMESPACE, "service/probe", ":80")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", forwarding.stdout.readline())
        assert found is not None
        assert fetch(f"http://127.0.0.1:{found[1]}/") in pod_names(probes)
        forwarding.terminate()


def test_unrestricted_pods_are_refused_where_the_namespace_says_so(probes: BareCluster) -> None:
    with pytest.raises(CommandFailedError, match="violates PodSecurity"):
        kubectl(probes, "run", "root", "--image=sluice.local/probe:1")


def test_a_second_up_takes_seconds(probes: BareCluster) -> None:
    before = pod_names(probes)
    machine = BusyMachine()
    probes.up()
    assert machine.calm_seconds < 8.0
    assert pod_names(probes) == before


def test_writes_are_in_the_audit_log(probes: BareCluster) -> None:
    kubectl(probes, "create", "configmap", "audited")
    lines = map(json.loads, probes.audit_log.read_text().splitlines())
    found = [line for line in lines if line.get("objectRef", {}).get("name") == "audited"]
    assert [(line["verb"], line["responseStatus"]["code"]) for line in found] == [("create", 201)]


def test_two_clusters_run_beside_each_other(probes: BareCluster, another: BareCluster) -> None:
    another.up()
    first, second = (
        run(one.kubectl_argv("get", "nodes", "-o", "name")).strip() for one in (probes, another)
    )
    assert (first, second) == ("node/test-cluster", "node/test-another")
    another.down()
    assert fetch(f"http://{service_address(probes)}/") in pod_names(probes)


def test_a_node_that_died_comes_back_with_its_pods(probes: BareCluster) -> None:
    layout = known_layout(state_directory(), "test-cluster")
    assert layout is not None
    pid = find_node(layout)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    probes.up()
    assert find_node(layout) != pid
    wait_for_probes(probes)
    assert fetch(f"http://{service_address(probes)}/") in pod_names(probes)


def test_images_that_are_there_are_not_loaded_again(
    probes: BareCluster, probe_archive: Path, tmp_path: Path
) -> None:
    layout = known_layout(state_directory(), "test-cluster")
    assert layout is not None
    assert are_loaded(ctr_argv(layout), probe_archive)
    rebuilt = tmp_path / "other"
    rebuilt.write_bytes(b"another program")
    write_static_image(rebuilt, "sluice.local/probe:1", tmp_path / "other.tar")
    assert not are_loaded(ctr_argv(layout), tmp_path / "other.tar")


def test_loading_an_image_into_a_cluster_that_does_not_run_is_refused(
    another: BareCluster,
) -> None:
    with pytest.raises(ClusterError, match="not running"):
        another.load_image(another.kubeconfig)
