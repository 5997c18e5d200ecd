"""An image of files alone, as `docker load` and containerd read it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from e2e.images.archive import write_image


def test_an_image_holds_its_files_in_one_layer_that_its_config_names(tmp_path: Path) -> None:
    write_image(tmp_path / "image.tar", "localhost/m:1", {"models/config.json": b"{}"})
    parts = _contents((tmp_path / "image.tar").read_bytes())
    (manifest,) = json.loads(parts["manifest.json"])
    assert manifest["RepoTags"] == ["localhost/m:1"]
    (layer,) = (parts[name] for name in manifest["Layers"])
    (diff_id,) = json.loads(parts[manifest["Config"]])["rootfs"]["diff_ids"]
    assert diff_id == f"sha256:{hashlib.sha256(layer).hexdigest()}"
    assert _contents(layer) == {"models/config.json": b"{}"}


def _contents(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = {entry.name: files.extractfile(entry) for entry in files}
        return {name: file.read() for name, file in found.items() if file is not None}
