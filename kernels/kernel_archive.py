"""`python kernels/kernel_archive.py pack|unpack [FILE] [--root FOLDER]`: hands kernels that were
built ahead to another machine, as one file with the versions that they were made for, and the
sha256 of every kernel. Needs nothing but Python."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sluice_kernels.flashinfer_ahead import CUDA, MANIFEST, VERSION, Manifest, library

ROOT: Final = Path(__file__).resolve().parents[1]
ARCHIVE: Final = Path("gpu-kernels.tar.xz")
FOLDERS: Final = (
    Path("kernels/sluice_kernels/flashinfer_built"),
    Path("kernels/sluice_kernels/triton/built"),
)
"""Folders whose content is handed over, from the root of a checkout."""
VERSIONS: Final = {"flashinfer": VERSION, "cuda": CUDA}
"""Versions that modules depend on: flashinfer's own prebuilt packages differ by these two, too."""


class UnusableArchiveError(Exception):
    """A file is no archive of kernels, is not as it was packed, or is for other versions; `str()`
    is one line that says why."""


def pack(archive: Path, root: Path = ROOT) -> Mapping[str, Any]:
    """Writes all kernels of the checkout `root`; returns the archive's manifest, its first file:
    versions, architectures by module, and the sha256 of each other file by its name.

    Raises:
        FileNotFoundError: a folder has no kernels.
    """
    built, cubins = (root / folder for folder in FOLDERS)
    modules, programs = Manifest.read(built), _json(cubins / MANIFEST).get("cubins")
    if modules is None or not programs:
        empty = FOLDERS[0] if modules is None else FOLDERS[1]
        raise FileNotFoundError(f"{empty} has no kernels: scripts/gpu-kernels builds them")
    paths = [built / MANIFEST, *(library(built, name) for name in modules.modules)]
    paths += [cubins / MANIFEST, *(cubins / name for name in programs)]
    contents = {str(path.relative_to(root)): path.read_bytes() for path in sorted(paths)}
    manifest = {
        "versions": VERSIONS | {"flashinfer": modules.version},
        "modules": {name: module.architectures for name, module in modules.modules.items()},
        "files": {name: _sha256(content) for name, content in contents.items()},
    }
    text = json.dumps(manifest, indent=1).encode()
    with tarfile.open(archive, "w:xz") as file:
        for name, content in {MANIFEST: text, **contents}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return manifest


def unpack(archive: Path, root: Path = ROOT) -> Mapping[str, Any]:
    """Replaces the kernels of the checkout `root` by those of the archive, once all have been
    checked; returns the archive's manifest.

    Raises:
        UnusableArchiveError: nothing was replaced.
    """
    manifest, contents = _read(archive)
    for name, version in VERSIONS.items():
        if (made_for := manifest["versions"].get(name)) != version:
            raise UnusableArchiveError(f"{archive}: {name}: {made_for}; allowed: {version}")
    digests: Mapping[str, str] = manifest["files"]
    if damaged := [name for name in digests if _sha256(contents.get(name, b"")) != digests[name]]:
        raise UnusableArchiveError(f"{archive}: not as packed: {', '.join(sorted(damaged))}")
    if other := [name for name in contents if name not in digests or not _belongs(name)]:
        raise UnusableArchiveError(f"{archive}: does not belong there: {', '.join(sorted(other))}")
    for folder in FOLDERS:
        if not any(folder in Path(name).parents for name in contents):
            raise UnusableArchiveError(f"{archive}: has nothing for {folder}")
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        for name, content in contents.items():
            path = Path(scratch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for folder in FOLDERS:
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, folder).rename(root / folder)
    return manifest


def _read(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with tarfile.open(archive, "r:xz") as file:
            files = ((member.name, file.extractfile(member)) for member in file)
            contents = {name: content.read() for name, content in files if content}
        parts: dict[str, Any] = json.loads(contents.pop(MANIFEST))
        manifest = {name: dict(parts[name]) for name in ("versions", "modules", "files")}
    except (OSError, EOFError, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise UnusableArchiveError(f"{archive}: {error or type(error).__name__}") from None
    return manifest, contents


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def _belongs(name: str) -> bool:
    path = Path(name)
    return ".." not in path.parts and any(folder in path.parents for folder in FOLDERS)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("file", type=Path, nargs="?", default=ARCHIVE, help=f"default: {ARCHIVE}")
    parser.add_argument("--root", type=Path, default=ROOT, help="default: this checkout")
    options = parser.parse_args(words)
    action = pack if options.action == "pack" else unpack
    try:
        manifest = action(options.file, options.root)
    except (UnusableArchiveError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    counts = f"{len(manifest['modules'])} modules, {len(manifest['files'])} files"
    mib = options.file.stat().st_size / 2**20
    digest = _sha256(options.file.read_bytes())
    print(f"{options.file}: {versions}, {counts}, {mib:.1f} MiB, {digest}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
