"""kubectl as a function, for the installation and the stories. Knows no kind of ours."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Protocol

from e2e.cluster.errors import ClusterError


class Reachable(Protocol):
    """A cluster, as far as kubectl is concerned."""

    def kubectl_argv(self, *words: str) -> list[str]: ...


class Kubectl:
    """Runs kubectl against one cluster."""

    def __init__(self, cluster: Reachable) -> None:
        self._cluster = cluster

    def run(self, *words: str, stdin: str | None = None, timeout_seconds: float = 300) -> str:
        """Standard output; raises ClusterError with kubectl's own words when it fails."""
        argv = self._cluster.kubectl_argv(*words)
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        """`kubectl get … -o json`, parsed."""
        return dict(json.loads(self.run("get", *words, "-o", "json")))

    def apply(self, manifest: str) -> str:
        """Server-side apply of YAML or JSON text."""
        return self.run(
            "apply", "--server-side", "--field-manager=sluice-e2e", "-f", "-", stdin=manifest
        )

    def argv(self, *words: str) -> list[str]:
        """A command line, for a process of one's own."""
        return self._cluster.kubectl_argv(*words)
