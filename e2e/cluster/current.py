"""Provider `current`: the cluster that the user's kubeconfig leads to, when asked for by name.

It is not ours: `up` checks that it answers, `down` removes nothing of it, and images must come
from a registry that it can pull from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.kind import kubectl_command
from e2e.cluster.progress import say
from e2e.cluster.provider import Status


class CurrentCluster:
    """The current context of KUBECONFIG, else of ~/.kube/config."""

    kind = "current"

    def __init__(self, environment: Mapping[str, str]) -> None:
        # kubectl takes a list of files; other clients read the first one.
        first = environment.get("KUBECONFIG", "").split(":")[0]
        self._kubeconfig = Path(first) if first else Path.home() / ".kube" / "config"
        if not self._kubeconfig.exists():
            raise ClusterError(f"CLUSTER=current: there is no kubeconfig {self._kubeconfig}")

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    def up(self) -> None:
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
            "to a registry it can pull from"
        )

    def kubectl_argv(self, *words: str) -> list[str]:
        return [*kubectl_command(), f"--kubeconfig={self._kubeconfig}", *words]

    def _context(self) -> str:
        return run(self.kubectl_argv("config", "current-context")).strip()
