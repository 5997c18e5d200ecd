"""Chooses the provider of the cluster: the one that is named, else the first that this machine
has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.bare.state import state_directory
from e2e.cluster.errors import ClusterError, NoNodeImageError
from e2e.cluster.progress import say
from e2e.cluster.provider import Cluster
from e2e.cluster.providers.bare import BareCluster
from e2e.cluster.providers.current import CurrentCluster
from e2e.cluster.providers.kind import KindCluster, running_engine

KINDS = ("bare", "kind", "current")
DEFAULT_NAME = "sluice"


def choose_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """The provider that CLUSTER names. If it is empty: a bare cluster if one exists, else kind
    where Docker or Podman runs, else bare on Linux as root.

    A cluster of somebody's kubeconfig is used only on demand: CLUSTER=current.
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


def start_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """The chosen cluster, running. If kind was not named, and has no image for its node, a bare
    cluster takes its place; from then on, `choose_cluster` finds that one."""
    cluster = choose_cluster(environment)
    try:
        cluster.up()
    except NoNodeImageError as error:
        if environment.get("CLUSTER") or not _can_be_bare():
            raise
        say(f"The cluster is a bare one: {str(error).splitlines()[0]}")
        cluster = choose_cluster({**environment, "CLUSTER": "bare"})
        cluster.up()
    return cluster


def _can_be_bare() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


def _detect(bare_state: Path) -> str:
    # A container engine started since then must not hide the cluster that `down` should remove.
    if bare_state.exists():
        return "bare"
    if running_engine() is not None:
        return "kind"
    if _can_be_bare():
        return "bare"
    raise ClusterError(
        "no way to have a cluster: start Docker or Podman (then kind is used), run as root on "
        "Linux (then it runs without either), or name yours with CLUSTER=current"
    )
