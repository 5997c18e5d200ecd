"""`python -m e2e.cluster COMMAND`, from the root: `up`, `down`, `build`, `build-monitoring`,
`build-keda`, `status`, `kubectl …`, `load-image FILE`, `kubeconfig`.

Environment: CLUSTER (bare, kind, current; empty chooses), SLUICE_CLUSTER (its name, else sluice),
SLUICE_STATE and SLUICE_CACHE (where clusters and builds are kept).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from e2e.cluster.choose import choose_cluster, start_cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import say
from e2e.cluster.provider import Cluster
from e2e.cluster.toolchain.binaries import ensure_binaries
from e2e.cluster.toolchain.containerd import ensure_containerd
from e2e.cluster.toolchain.gateway_api import http_route_definition, inference_pool_definition
from e2e.cluster.toolchain.helm import ensure_helm
from e2e.cluster.toolchain.keda import ensure_keda
from e2e.cluster.toolchain.prerequisites import MONITORING_PACKAGES, ensure_packages


def main() -> int:
    try:
        return _dispatch(sys.argv[1:])
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; `make down` removes what was begun")
        return 130


def _dispatch(words: list[str]) -> int:
    # kubectl's words are passed on as they are, so they never meet argparse.
    if words[:1] == ["kubectl"]:
        _become_kubectl(choose_cluster(), words[1:])
    parsed = _parser().parse_args(words)
    if parsed.command == "build":
        ensure_binaries()
        ensure_containerd()
        ensure_helm()
        http_route_definition()
        inference_pool_definition()
        inference_pool_definition(first_release=True)
    if parsed.command in ("build", "build-monitoring"):
        ensure_packages(MONITORING_PACKAGES)
        return 0
    if parsed.command == "build-keda":
        ensure_keda()
        return 0
    if parsed.command == "up":
        start_cluster()
        return 0
    cluster = choose_cluster()
    match parsed.command:
        case "down":
            cluster.down()
        case "load-image":
            cluster.load_image(parsed.archive)
        case "kubeconfig":
            _require_kubeconfig(cluster)
            print(cluster.kubeconfig)
        case _:
            return _print_status(cluster)
    return 0


def _require_kubeconfig(cluster: Cluster) -> None:
    if not cluster.kubeconfig.exists():
        raise ClusterError(
            f"there is no cluster ({cluster.kubeconfig} does not exist): `make up` first"
        )


def _become_kubectl(cluster: Cluster, words: list[str]) -> NoReturn:
    _require_kubeconfig(cluster)
    if not cluster.status().running:
        raise ClusterError("the cluster is not running: `make up` first, or `make down`")
    argv = cluster.kubectl_argv(*words)
    os.execv(argv[0], argv)


def _print_status(cluster: Cluster) -> int:
    """Prints the status. Returns 0 if the cluster runs and 1 if not, for scripts."""
    status = cluster.status()
    print(f"{status.name} ({status.kind}): {'running' if status.running else 'not running'}")
    for label, value in status.details.items():
        print(f"  {label + ':':<16}{value}")
    return 0 if status.running else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="have a cluster, ready for pods")
    commands.add_parser("down", help="remove it and everything it made on this machine")
    commands.add_parser(
        "build", help="make the cluster's programs, helm and what tests install, once"
    )
    commands.add_parser("build-monitoring", help="install Prometheus, for the tests of alerts")
    commands.add_parser("build-keda", help="build KEDA, for the test of level full, once")
    commands.add_parser("status", help="whether it runs, and where its files are")
    commands.add_parser("kubeconfig", help="print the path of its kubeconfig")
    commands.add_parser("kubectl", help="kubectl with all words that follow")
    load = commands.add_parser("load-image", help="make an image archive available to pods")
    load.add_argument("archive", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
