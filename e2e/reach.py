"""The URL of a Service, as a person or a test on this machine uses it.

The bare cluster's Service addresses are routed on the host. Elsewhere a port is forwarded while it
is needed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl


def direct_url(cluster: Cluster, namespace: str, service: str) -> str | None:
    """The Service's own address, where this machine has a route to it."""
    if cluster.kind != "bare":
        return None
    found = Kubectl(cluster).get("service", service, "-n", namespace)
    return f"http://{found['spec']['clusterIP']}"


@contextmanager
def reach(cluster: Cluster, namespace: str, service: str) -> Iterator[str]:
    """A URL of the Service that works until the block ends."""
    if url := direct_url(cluster, namespace, service):
        yield url
        return
    with forwarded(cluster, namespace, service) as url:
        yield url


@contextmanager
def forwarded(cluster: Cluster, namespace: str, service: str) -> Iterator[str]:
    """The URL of a Service by `kubectl port-forward`, which works with any cluster that kubectl
    reaches."""
    argv = cluster.kubectl_argv("port-forward", "-n", namespace, f"service/{service}", ":80")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            if found is None:
                raise ClusterError(f"kubectl port-forward service/{service} did not start")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
