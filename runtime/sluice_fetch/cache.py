"""Hugging Face's cache layout on disk: blobs by hash, snapshots of links to them, refs.

    models--org--name/blobs/HASH[.incomplete]
                      snapshots/COMMIT/NAME -> ../../blobs/HASH
                      refs/REVISION          the commit
                      complete/COMMIT.json   ours: all files of the commit are there and verified

One process writes at a time: `exclusive`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sluice_fetch.errors import NoSpaceError
from sluice_fetch.snapshot import HubFile, Selection, Snapshot

RESERVE_BYTES: Final = 16 << 20
"""Free space to leave for links, refs and the file system itself."""


class Cache:
    """The part of a cache for one repository."""

    def __init__(self, root: Path, repository: str) -> None:
        self.folder = root / f"models--{repository.replace('/', '--')}"

    def snapshot_folder(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def is_complete(self, commit: str, selection: Selection) -> bool:
        """Whether the marker lists every selected file and each still has its recorded size."""
        listed, folder = self._listed(commit), self.snapshot_folder(commit)
        if selection.missing(listed):
            return False
        try:
            return all((folder / name).stat().st_size == size for name, size in listed.items())
        except OSError:
            return False

    def blob(self, file: HubFile) -> Path:
        return self.folder / "blobs" / file.etag

    def partial(self, file: HubFile) -> Path:
        """Path of an unfinished download; its name is fixed, so that another process can resume
        it."""
        return self.folder / "blobs" / f"{file.etag}.incomplete"

    def size_there(self, file: HubFile) -> int:
        """Bytes of a file that are already there."""
        for path in (self.blob(file), self.partial(file)):
            if path.exists():
                return min(path.stat().st_size, file.size_bytes)
        return 0

    def check_space(self, snapshot: Snapshot) -> None:
        """Raises NoSpaceError, with figures, if the missing bytes do not fit on the disk."""
        blobs = {file.etag: file for file in snapshot.files}.values()
        missing = sum(file.size_bytes - self.size_there(file) for file in blobs)
        free = shutil.disk_usage(self.folder).free
        if missing and missing + RESERVE_BYTES > free:
            raise NoSpaceError(
                f"{self.folder}: {missing} bytes are missing and {RESERVE_BYTES} kept, {free} are"
                f" free; allowed: a volume with {missing + RESERVE_BYTES - free} bytes more"
            )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Waits until no other process writes; the lock of a killed process is free."""
        (self.folder / "blobs").mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def link(self, snapshot: Snapshot) -> None:
        """Links a snapshot to its blobs, which are all there, and writes the marker last."""
        folder = self.snapshot_folder(snapshot.commit)
        folder.mkdir(parents=True, exist_ok=True)
        for file in snapshot.files:
            link = folder / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(Path("..", "..", "blobs", file.etag))
        listed = {file.name: file.size_bytes for file in snapshot.files}
        recorded = self._listed(snapshot.commit)  # a commit may hold a model and an adapter
        _write(self._marker(snapshot.commit), json.dumps({"files": recorded | listed}))

    def remember(self, revision: str, commit: str) -> None:
        """Records the commit of a revision, for readers that use huggingface_hub."""
        if revision != commit:
            _write(self.folder / "refs" / revision, commit)

    def remembered(self, revision: str) -> str | None:
        """The commit that `remember` recorded for a revision; None without one."""
        try:
            return (self.folder / "refs" / revision).read_text()
        except OSError:
            return None

    def _listed(self, commit: str) -> dict[str, int]:
        """Sizes of the files that a commit's marker lists, by name; empty without a marker."""
        try:
            listed = json.loads(self._marker(commit).read_bytes())["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return listed if isinstance(listed, dict) else {}

    def _marker(self, commit: str) -> Path:
        return self.folder / "complete" / f"{commit}.json"


def verified(path: Path, file: HubFile) -> bool:
    """Whether a file's content has the hub's hash. Reads the whole file."""
    lfs = len(file.etag) == 64
    begun = hashlib.sha256() if lfs else hashlib.sha1(usedforsecurity=False)
    if not lfs:
        begun.update(b"blob %d\0" % file.size_bytes)
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: begun).hexdigest() == file.etag


def _write(path: Path, text: str) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
