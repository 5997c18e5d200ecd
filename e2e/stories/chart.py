"""Helm and the chart of this checkout, for stories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.command import run
from e2e.cluster.provider import Cluster
from e2e.cluster.toolchain.helm import ensure_helm
from e2e.install import NAMESPACE
from release.chart import NAME, write_chart
from release.released import Released

KEYS = {
    "operator": "operator", "router": "router", "engine": "engine", "gpu_engine": "gpuEngine",
    "fetch": "fetch",
}  # fmt: skip
"""Component → key of its image in the chart's values."""
_WAIT = ("--wait", "--timeout", "3m")


class Chart:
    """The release `sluice` in one cluster."""

    def __init__(self, cluster: Cluster, images: Mapping[str, str], folder: Path) -> None:
        self._cluster = cluster
        self._chart, self._values = folder / NAME, folder / "values.json"
        write_chart(self._chart, Released())
        self._values.write_text(json.dumps({"images": image_values(images)}))

    def install(self) -> None:
        self._helm("install", self._chart, "--values", self._values, "--create-namespace", *_WAIT)

    def upgrade(self, *settings: str) -> None:
        """Upgrades with `settings` as in `--set`, which later upgrades keep."""
        given = [word for each in settings for word in ("--set", each)]
        self._helm("upgrade", self._chart, "--reset-then-reuse-values", *given, *_WAIT)

    def test(self) -> str:
        """Output of `helm test`, including the log of its pod."""
        return self._helm("test", "--logs", "--timeout", "2m")

    def uninstall(self) -> None:
        self._helm("uninstall", *_WAIT)

    def _helm(self, command: str, *words: str | Path) -> str:
        kubeconfig = ("--kubeconfig", self._cluster.kubeconfig)
        return run(
            [ensure_helm(), command, "sluice", "--namespace", NAMESPACE, *kubeconfig, *words]
        )


def image_values(images: Mapping[str, str]) -> dict[str, Any]:
    """The chart's values that name `images`, as `install_operator` takes them."""
    named = {"gpu_engine": images["engine"], **images}
    found = {}
    for component, key in KEYS.items():
        repository, _, tag = named[component].rpartition(":")
        found[key] = {"repository": repository, "tag": tag}
    return found
