"""What every way to have a cluster offers. The rest of the project knows only this."""

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
        """Makes it run and be ready for pods; quick when it is."""
        ...

    def down(self) -> None:
        """Removes all that `up` made, also after an `up` that was killed."""
        ...

    def status(self) -> Status: ...

    def present_images(self) -> Collection[str]:
        """What need not be loaded: names of images and digests of blobs that the cluster holds."""
        ...

    def load_image(self, archive: Path) -> None:
        """Makes an image archive (docker-archive or OCI) available to pods under its names."""
        ...

    def kubectl_argv(self, *words: str) -> list[str]:
        """A kubectl command line for this cluster."""
        ...
