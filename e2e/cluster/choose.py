"""Which provider gives the cluster: the one that is named, else the first that this machine has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.bare.state import state_directory
from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.cluster.providers.bare import BareCluster
from e2e.cluster.providers.current import CurrentCluster
from e2e.cluster.providers.kind import KindCluster, running_engine

KINDS = ("bare", "kind", "current")
DEFAULT_NAME = "sluice"


def choose_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """CLUSTER names it; left empty: a bare one if it exists, else kind where Docker or Podman
    runs, else bare on Linux as root.

    A cluster that somebody's kubeconfig leads to is used only when asked for: CLUSTER=current.
    """
    name = environment.get("SLUICE_CLUSTER") or DEFAULT_NAME
    asked = environment.get("CLUSTER") or _detect(state_directory(environment) / name)
    if asked == "bare":
        return BareCluster(name)
    if asked == "kind":
        return KindCluster(name, running_engine())
    if asked == "current":
        return CurrentCluster(environment)
    raise ClusterError(f"CLUSTER={asked}: allowed are {', '.join(KINDS)}")


def _detect(bare_state: Path) -> str:
    # An engine started since must not hide the cluster that `down` is meant for.
    if bare_state.exists():
        return "bare"
    if running_engine() is not None:
        return "kind"
    if sys.platform == "linux" and os.geteuid() == 0:
        return "bare"
    raise ClusterError(
        "no way to have a cluster: start Docker or Podman (then kind is used), run as root on "
        "Linux (then it runs without either), or name yours with CLUSTER=current"
    )
