"""Whether a node has the images of an archive already, so that they are not loaded twice.

Names alone do not tell: a rebuilt image has the old name. Its configuration's digest does. Asked
through `ctr`, which every provider with containerd has. When in doubt the answer is no.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import CommandFailedError

# Where an OCI archive says how its images are called; containerd looks in this order.
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


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
    """Image name → digest of its configuration, of an OCI or a `docker save` archive."""
    with tarfile.open(archive) as files:
        names = files.getnames()
        if "manifest.json" in names:
            return dict(_docker_images(files))
        return dict(_oci_images(files)) if "index.json" in names else {}


def _docker_images(files: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    for image in json.loads(_read(files, "manifest.json")):
        digest = f"sha256:{hashlib.sha256(_read(files, image['Config'])).hexdigest()}"
        yield from ((name, digest) for name in image["RepoTags"] or [])


def _oci_images(files: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    for entry in json.loads(_read(files, "index.json"))["manifests"]:
        annotations = entry.get("annotations", {})
        name = next((annotations[key] for key in NAME_ANNOTATIONS if key in annotations), None)
        manifest = json.loads(_read(files, f"blobs/{entry['digest'].replace(':', '/')}"))
        if name is not None and "config" in manifest:
            yield name, manifest["config"]["digest"]


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
