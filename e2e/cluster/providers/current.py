"""Provider `current`: the cluster of the user's kubeconfig, only when CLUSTER names it.

It is not ours: `up` checks that it answers, `down` removes nothing from it. Images reach it through
the registry named by REGISTRY, which this machine can push to and the cluster can pull from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.progress import say
from e2e.cluster.provider import Status
from e2e.cluster.providers.kind import kubectl_command

REGISTRY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")
EXAMPLE = "REGISTRY=registry.example.com/team make up CLUSTER=current"


class CurrentCluster:
    """The current context of KUBECONFIG, else of ~/.kube/config."""

    kind = "current"

    def __init__(self, environment: Mapping[str, str]) -> None:
        # kubectl takes a list of files; other clients read the first one.
        first = environment.get("KUBECONFIG", "").split(":")[0]
        self._kubeconfig = Path(first) if first else Path.home() / ".kube" / "config"
        if not self._kubeconfig.exists():
            raise ClusterError(f"CLUSTER=current: there is no kubeconfig {self._kubeconfig}")
        self._registry = environment.get("REGISTRY", "").rstrip("/")

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    @property
    def registry(self) -> str:
        """HOST[:PORT][/PATH]. Raises ClusterError with what to set."""
        if not self._registry:
            raise ClusterError(
                "CLUSTER=current: images cannot be loaded into this cluster, so it has to pull "
                f"them; name a registry that you can push to: {EXAMPLE}"
            )
        if not REGISTRY.fullmatch(self._registry):
            raise ClusterError(
                f"REGISTRY={self._registry}: allowed is HOST[:PORT][/PATH] in lower case, without "
                f"https:// and without a tag: {EXAMPLE}"
            )
        return self._registry

    def up(self) -> None:
        # Before kubectl, which may have to be built.
        _ = self.registry
        try:
            run(self.kubectl_argv("get", "--raw=/readyz", "--request-timeout=20s"))
        except CommandFailedError as error:
            raise ClusterError(f"the current cluster does not answer:\n{error}") from error
        say(f"Using the current cluster: {self._context()}")

    def down(self) -> None:
        say(f"The cluster {self._context()} is yours and stays as it is.")

    def status(self) -> Status:
        try:
            run(self.kubectl_argv("get", "--raw=/readyz", "--request-timeout=20s"))
        except CommandFailedError:
            return Status(self.kind, self._context(), running=False, details={})
        details = {"kubeconfig": str(self._kubeconfig)}
        return Status(self.kind, self._context(), running=True, details=details)

    def present_images(self) -> Collection[str]:
        return ()

    def load_image(self, archive: Path) -> None:
        raise ClusterError(
            f"{archive}: images cannot be loaded into the cluster {self._context()}; push them "
            "to a registry that it can pull from"
        )

    def kubectl_argv(self, *words: str) -> list[str]:
        return [*kubectl_command(), f"--kubeconfig={self._kubeconfig}", *words]

    def _context(self) -> str:
        return run(self.kubectl_argv("config", "current-context")).strip()
