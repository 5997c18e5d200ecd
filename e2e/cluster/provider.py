"""The interface of a cluster's provider. The rest of the project knows only this."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Status:
    """What `status` prints: `details` are lines for a person, label → value."""

    kind: str
    name: str
    running: bool
    details: Mapping[str, str]


class Cluster(Protocol):
    """One cluster, there or not. Every method is safe to call in any state."""

    @property
    def kind(self) -> str:
        """`bare`, `kind` or `current`."""
        ...

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig; a file once the cluster is up."""
        ...

    @property
    def registry(self) -> str | None:
        """The registry from which pods pull this checkout's images; None where images are loaded
        instead."""
        ...

    def up(self) -> None:
        """Makes the cluster run and be ready for pods; quick if it is."""
        ...

    def down(self) -> None:
        """Removes everything that `up` made, even an `up` that was killed."""
        ...

    def status(self) -> Status: ...

    def present_images(self) -> Collection[str]:
        """Names of images and digests of blobs that the cluster has, which need not be loaded."""
        ...

    def load_image(self, archive: Path) -> None:
        """Makes an image archive (docker-archive or OCI) available to pods under its names."""
        ...

    def kubectl_argv(self, *words: str) -> list[str]:
        """A kubectl command line for this cluster."""
        ...
