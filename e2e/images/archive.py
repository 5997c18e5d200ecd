"""An image of files, written without a builder: one layer, in the format of `docker save`."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LAYER: Final = "layer.tar"
CONFIG: Final = "config.json"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(target: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Writes the archive `target` of an image `name` that holds only `files`, by their paths in
    it."""
    layer = _tar(files)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": CONFIG, "RepoTags": [name], "Layers": [LAYER]}]
    contents = {"manifest.json": json.dumps(manifest).encode(), CONFIG: json.dumps(config).encode()}
    target.write_bytes(_tar({**contents, LAYER: layer}))


def _tar(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()
