"""A folder in OCI image layout, and archives of its images without the blobs that are there
already.

Blobs are named by their content, so an archive need not contain a blob that its reader has. A
change of code travels as its own small layer. Knows neither builders nor clusters.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError

NAME = "org.opencontainers.image.ref.name"
# What containerd calls the image; it takes the annotation above for a bare tag.
CONTAINERD_NAME = "io.containerd.image.name"


class ImageLayout:
    """Images by name in one folder, layers shared between them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def has(self, name: str) -> bool:
        return any(_name(entry) == name for entry in self._entries())

    def blobs(self, name: str) -> list[str]:
        """Digests of the image `name`: manifest, configuration, then layers from the base up."""
        manifest = self._manifest(name)
        content = json.loads(self._path(manifest["digest"]).read_text())
        parts = [content["config"], *content["layers"]]
        return [manifest["digest"], *(part["digest"] for part in parts)]

    def size_bytes(self, name: str) -> int:
        return sum(self._path(digest).stat().st_size for digest in self.blobs(name))

    def write_archive(self, name: str, target: Path, present: Collection[str] = ()) -> None:
        """The image `name` as an OCI archive without the layers whose digests are in `present`.

        Manifest and configuration are always in it: a load that was interrupted may have left
        them behind without the image.
        """
        entry = self._manifest(name)
        annotated = {**entry, "annotations": {CONTAINERD_NAME: name, NAME: name}}
        index = {"schemaVersion": 2, "manifests": [annotated]}
        with tarfile.open(target, "w") as archive:
            _add(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
            _add(archive, "index.json", index)
            for position, digest in enumerate(self.blobs(name)):
                if position < 2 or digest not in present:
                    archive.add(self._path(digest), f"blobs/sha256/{_hex(digest)}")

    def drop_older(self, name: str) -> None:
        """Forgets the other tags of `name`'s image, and deletes blobs that no other image uses."""
        image = name.rpartition(":")[0]
        kept = [
            entry
            for entry in self._entries()
            if _name(entry) == name or _name(entry).rpartition(":")[0] != image
        ]
        needed = {_hex(digest) for entry in kept for digest in self.blobs(_name(entry))}
        index = {"schemaVersion": 2, "manifests": kept}
        (self._folder / "index.json").write_text(json.dumps(index))
        for blob in (self._folder / "blobs" / "sha256").iterdir():
            if blob.name not in needed:
                blob.unlink()

    def _entries(self) -> list[dict[str, Any]]:
        index = self._folder / "index.json"
        if not index.exists():
            return []
        entries: list[dict[str, Any]] = json.loads(index.read_text())["manifests"]
        return entries

    def _manifest(self, name: str) -> dict[str, Any]:
        for entry in self._entries():
            if _name(entry) == name:
                return entry
        raise ClusterError(f"{self._folder} holds no image {name}")

    def _path(self, digest: str) -> Path:
        return self._folder / "blobs" / "sha256" / _hex(digest)


def _name(entry: dict[str, Any]) -> str:
    return str(entry.get("annotations", {}).get(NAME, ""))


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _add(archive: tarfile.TarFile, name: str, content: dict[str, Any]) -> None:
    encoded = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(encoded)
    archive.addfile(entry, io.BytesIO(encoded))
