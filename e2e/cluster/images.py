"""Whether a node has the images of an archive already, so that they are not loaded twice.

Names alone do not tell: a rebuilt image has the old name. Its configuration's digest does. Asked
through `ctr`, which every provider with containerd has. When in doubt the answer is no.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import CommandFailedError


def are_loaded(ctr: Sequence[str | Path], archive: Path) -> bool:
    """Whether every image of the archive is there as it is in the archive. `ctr` is a command
    line up to containerd's namespace."""
    wanted = archive_images(archive)
    return bool(wanted) and all(
        _loaded_configuration(ctr, name) == digest for name, digest in wanted.items()
    )


def present_images(ctr: Sequence[str | Path]) -> frozenset[str]:
    """Names of images and digests of blobs; `ctr` is its command line up to the subcommand."""
    names, digests = (run([*ctr, kind, "ls", "--quiet"]) for kind in ("images", "content"))
    return frozenset((*names.split(), *digests.split()))


def archive_images(archive: Path) -> dict[str, str]:
    """Image name → digest of its configuration, of a `docker save` archive; empty for others."""
    with tarfile.open(archive) as files:
        if "manifest.json" not in files.getnames():
            return {}
        return {
            name: f"sha256:{hashlib.sha256(_read(files, image['Config'])).hexdigest()}"
            for image in json.loads(_read(files, "manifest.json"))
            for name in image["RepoTags"] or []
        }


def _read(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(name)
    assert member is not None, f"{name} is no file in the archive"
    return member.read()


def _loaded_configuration(ctr: Sequence[str | Path], name: str) -> str | None:
    try:
        rows = run([*ctr, "images", "list", f"name=={name}"]).splitlines()[1:]
        # REF TYPE DIGEST SIZE …
        manifest = json.loads(run([*ctr, "content", "get", rows[0].split()[2]]))
    except (CommandFailedError, IndexError, json.JSONDecodeError):
        return None
    configuration = manifest.get("config", {}).get("digest")
    return str(configuration) if configuration else None
