"""`python -m e2e.gpu_runs.kernel_archive pack|unpack [FILE]`: hands kernels that were built ahead
to another machine, as one file with the sha256 of every kernel. Needs nothing but Python."""

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
from typing import Final

from e2e.gpu_runs.environment import ROOT

ARCHIVE: Final = Path("gpu-kernels.tar.xz")
FOLDERS: Final = (
    Path("kernels/sluice_kernels/flashinfer_built"),
    Path("kernels/sluice_kernels/triton/built"),
)
"""Folders whose content is handed over, from the root of a checkout."""
DIGESTS: Final = "digests.json"
"""The archive's first file: the sha256 of each other one by its name."""


class DamagedArchiveError(Exception):
    """A file is no archive of kernels, or not as it was packed; `str()` is one line that says
    why."""


def pack(archive: Path, root: Path = ROOT) -> Mapping[str, str]:
    """Writes all kernels of the checkout `root`; returns the sha256 of each file by its name.

    Raises:
        FileNotFoundError: a folder has no kernels.
    """
    names: list[str] = []
    for folder in FOLDERS:
        files = [path for path in sorted((root / folder).rglob("*")) if path.is_file()]
        if not files:
            raise FileNotFoundError(f"{folder} has no kernels: scripts/gpu-kernels builds them")
        names += [str(path.relative_to(root)) for path in files]
    contents = {name: (root / name).read_bytes() for name in names}
    digests = {name: _sha256(content) for name, content in contents.items()}
    with tarfile.open(archive, "w:xz") as file:
        for name, content in {DIGESTS: json.dumps(digests).encode(), **contents}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return digests


def unpack(archive: Path, root: Path = ROOT) -> Mapping[str, str]:
    """Replaces the kernels of the checkout `root` by those of the archive, once all have been
    checked; returns the sha256 of each file by its name.

    Raises:
        DamagedArchiveError: nothing was replaced.
    """
    digests, contents = _read(archive)
    if damaged := [name for name in digests if _sha256(contents.get(name, b"")) != digests[name]]:
        raise DamagedArchiveError(f"{archive}: not as packed: {', '.join(sorted(damaged))}")
    if other := [name for name in contents if name not in digests or not _belongs(name)]:
        raise DamagedArchiveError(f"{archive}: does not belong there: {', '.join(sorted(other))}")
    for folder in FOLDERS:
        if not any(folder in Path(name).parents for name in contents):
            raise DamagedArchiveError(f"{archive}: has nothing for {folder}")
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        for name, content in contents.items():
            path = Path(scratch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for folder in FOLDERS:
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, folder).rename(root / folder)
    return digests


def _read(archive: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    try:
        with tarfile.open(archive, "r:xz") as file:
            files = ((member.name, file.extractfile(member)) for member in file)
            contents = {name: content.read() for name, content in files if content}
        digests: dict[str, str] = json.loads(contents.pop(DIGESTS))
    except (OSError, EOFError, tarfile.TarError, KeyError, ValueError) as error:
        raise DamagedArchiveError(f"{archive}: {error or type(error).__name__}") from None
    return digests, contents


def _belongs(name: str) -> bool:
    path = Path(name)
    return ".." not in path.parts and any(folder in path.parents for folder in FOLDERS)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu_runs.kernel_archive")
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("file", type=Path, nargs="?", default=ARCHIVE, help=f"default: {ARCHIVE}")
    options = parser.parse_args(words)
    try:
        files = pack(options.file) if options.action == "pack" else unpack(options.file)
    except (DamagedArchiveError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    mib = options.file.stat().st_size / 2**20
    print(
        f"{options.file}: {len(files)} files, {mib:.1f} MiB, {_sha256(options.file.read_bytes())}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
