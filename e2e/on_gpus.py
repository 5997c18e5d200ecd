"""`make e2e-gpu`: the stories that need real GPUs, on the cluster of the current context.

Refuses in one line where there is none. Knows how neither images nor stories work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import say
from e2e.cluster.providers.current import EXAMPLE, CurrentCluster
from e2e.kubectl import Kubectl

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
STORIES = "e2e/stories/test_real_gpus.py"


def gpu_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Name → GPUs that pods may have, of nodes that have any and take pods."""
    found = {}
    for node in nodes:
        count = int(node.get("status", {}).get("allocatable", {}).get(GPU, 0))
        if count and not node.get("spec", {}).get("unschedulable"):
            found[node["metadata"]["name"]] = count
    return found


def current_with_gpus(environment: Mapping[str, str]) -> dict[str, int]:
    """`gpu_nodes` of the current cluster.

    Raises:
        ClusterError: it was not named, does not answer, or has no GPUs.
    """
    if environment.get("CLUSTER") != "current":
        raise ClusterError(
            f"CLUSTER={environment.get('CLUSTER', '')}: allowed is current, a cluster with GPUs: "
            f"{EXAMPLE.replace('make up', 'make e2e-gpu')}"
        )
    cluster = CurrentCluster(environment)
    cluster.up()
    nodes = gpu_nodes(Kubectl(cluster).get("nodes")["items"])
    if not nodes:
        raise ClusterError(f"no node of the current cluster has {GPU} for pods")
    return nodes


def main() -> int:
    try:
        nodes = current_with_gpus(os.environ)
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    listed = ", ".join(f"{name} ({count})" for name, count in nodes.items())
    say(f"Nodes with GPUs: {listed}")
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", STORIES]).returncode


if __name__ == "__main__":
    raise SystemExit(main())
