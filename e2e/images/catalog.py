"""Which images there are, and the tag of each: a hash of everything it is made from.

Reads Dockerfiles and the files that they copy; knows nothing of how an image is built.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice_contract.version import VERSION

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError

ROOT = Path(__file__).resolve().parents[2]
TAG_DIGITS = 12
# What an image starts from that has nothing but its own files.
SCRATCH = "scratch"
# The "registry" of images that were never pushed.
LOCAL = "localhost/"
# COPY of files of the tree; `--from` copies from another stage, which is hashed already.
COPY = re.compile(r"^COPY (?!--from)(?P<sources>.+) \S+$", re.MULTILINE)


@dataclass(frozen=True)
class Image:
    """One Dockerfile, or a variant of one by its build arguments. `on` names the image of ours that
    it starts from, or SCRATCH; "" for the base image."""

    name: str
    on: str = ""
    variant_of: str = ""
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def dockerfile(self) -> str:
        return f"images/{self.variant_of or self.name}.Dockerfile"


IMAGES: Mapping[str, Image] = {
    image.name: image
    for image in (
        Image("engine"),
        Image("engine-cuda", variant_of="engine", arguments=(("ACCELERATOR", "cuda"),)),
        Image("engine-sample", on="engine"),
        Image("engine-smollm2", on="engine-sample"),
        Image("engine-cuda-sample", on="engine-cuda", variant_of="engine-sample"),
        Image("engine-pretended", on="engine-sample"),
        Image("router"),
        Image("operator"),
        Image("fetch"),
        Image("model-sample", on=SCRATCH),
    )
}


def with_foundations(names: Sequence[str]) -> list[Image]:
    """The named images and those they start from, in an order in which they can be built.

    Raises ClusterError for a name that is not in the catalogue.
    """
    ordered: dict[str, Image] = {}
    for name in names:
        if name not in IMAGES:
            raise ClusterError(f"image {name}: allowed are {', '.join(IMAGES)}")
        for image in reversed(list(_down_from(name))):
            ordered.setdefault(image.name, image)
    return list(ordered.values())


def _down_from(name: str) -> Iterator[Image]:
    """The image, the one it starts from, and so on."""
    while name:
        image = IMAGES[name]
        yield image
        name = image.on.removeprefix(SCRATCH)


def tag(image: Image, base: str, root: Path) -> str:
    """localhost/sluice-NAME:HASH, the hash over the Dockerfile, what it copies and its base."""
    dockerfile = root / image.dockerfile
    foundation = tag(IMAGES[image.on], base, root) if image.on in IMAGES else image.on or base
    digest = hashlib.sha256(foundation.encode() + b"\0")
    for key, value in image.arguments:
        digest.update(f"{key}={value}\0".encode())
    for path in [dockerfile, *copied_files(dockerfile, root)]:
        mode = b"x" if path.stat().st_mode & 0o111 else b"-"
        digest.update(str(path.relative_to(root)).encode() + mode + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{LOCAL}sluice-{image.name}:{digest.hexdigest()[:TAG_DIGITS]}"


def labels(image: Image, root: Path = ROOT) -> dict[str, str]:
    """Labels of an image that is built from the tree, named as in the OCI image specification."""
    values = {
        "title": f"sluice-{image.name}",
        "version": VERSION,
        "licenses": "Apache-2.0",
        "revision": _commit(root),
    }
    return {f"org.opencontainers.image.{name}": text for name, text in values.items() if text}


def _commit(root: Path) -> str:
    """The commit that is checked out; "" in a tree that has changes, or no git."""
    try:
        run(["git", "-C", root, "diff", "--quiet", "HEAD"])
        return run(["git", "-C", root, "rev-parse", "HEAD"]).strip()
    except (ClusterError, OSError):
        return ""


def take_context(images: Sequence[Image], target: Path, root: Path = ROOT) -> None:
    """Copies what the images are made from into `target`: an edit during a build goes into the
    next one, and no tag names what it does not hold."""
    shutil.rmtree(target, ignore_errors=True)
    files = {root / ".dockerignore"}
    for image in images:
        dockerfile = root / image.dockerfile
        files.update([dockerfile, *copied_files(dockerfile, root)])
    for file in sorted(files):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)


def copied_files(dockerfile: Path, root: Path) -> list[Path]:
    """Every file that a COPY of the Dockerfile takes from the tree, sorted, no bytecode."""
    found: set[Path] = set()
    for match in COPY.finditer(dockerfile.read_text()):
        for source in match["sources"].split():
            matched = [file for path in root.glob(source) for file in _files(path)]
            if not matched:
                raise ClusterError(f"{dockerfile.name} copies {source}, which is not there")
            found.update(matched)
    return sorted(found)


def _files(path: Path) -> Iterator[Path]:
    candidates = path.rglob("*") if path.is_dir() else [path]
    for file in candidates:
        if file.is_file() and "__pycache__" not in file.parts:
            yield file
