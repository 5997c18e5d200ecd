"""Fetches a model: revision → commit → files → free space → download → snapshot. Reports through
`tell`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_contract.config.model_facts import ResolvedModel, facts_of
from sluice_contract.config.weight_files import INDEX, LFS_POINTER, index_flaw, pointer_text

from sluice_fetch.cache import Cache
from sluice_fetch.errors import FileCorruptError, HubUnreachableError, NotAModelError, from_disk
from sluice_fetch.progress import Meter
from sluice_fetch.retry import Retry, Stopped
from sluice_fetch.settings import COMMIT
from sluice_fetch.snapshot import CONFIG_FILE, MODEL, HubFile, Origin, Selection, Snapshot, snapshot

MAX_CONFIG_BYTES: Final = 1 << 20
MAX_INDEX_BYTES: Final = 1 << 26
Tell = Callable[[str, Mapping[str, object]], None]
"""Function that reports an event with its fields."""


@dataclass(frozen=True)
class Fetched:
    commit: str
    folder: Path


@dataclass(frozen=True)
class Fetcher:
    """A fetch with its dependencies."""

    tell: Tell
    clock: Callable[[], float]
    retry: Retry
    parallel: int = 4
    """Files at a time."""
    selection: Selection = MODEL

    def resolve(self, origin: Origin) -> Snapshot:
        """The revision's current commit, and the files that an engine reads from it."""
        resolved = snapshot(self.selection, *self.retry.run(lambda: origin.look_up(self.selection)))
        fields = {"repository": origin.repository, "revision": origin.revision}
        size = {"files": len(resolved.files), "total": resolved.size_bytes}
        self.tell("resolved", {**fields, "commit": resolved.commit, **size})
        return resolved

    def facts(self, origin: Origin) -> ResolvedModel:
        """Facts about the revision's current commit, without downloading it."""
        resolved = self.resolve(origin)
        config = self.retry.run(lambda: _object_in(CONFIG_FILE, origin, resolved, MAX_CONFIG_BYTES))
        self._check_index(origin, resolved)
        facts = facts_of(config).model_dump()
        return ResolvedModel(**facts, commit=resolved.commit, bytes=resolved.size_bytes)

    def fetch(self, origin: Origin, root: Path) -> Fetched:
        """Fetches the model; the snapshot folder is complete and verified. A commit that is already
        complete needs no request.

        Raises:
            FetchError: the model cannot be fetched; has the reason's name and a message.
        """
        cache = Cache(root, origin.repository)
        commit = origin.revision
        if COMMIT.fullmatch(commit) and cache.is_complete(commit, self.selection):
            return self._done(commit, cache)
        try:
            return self._missing(origin, cache)
        except OSError as error:
            raise from_disk(error) from None

    def _missing(self, origin: Origin, cache: Cache) -> Fetched:
        resolved = self.resolve(origin)
        with cache.exclusive():
            if not cache.is_complete(resolved.commit, self.selection):
                cache.check_space(resolved)
                self._check_index(origin, resolved)
                self._download(origin, resolved, cache)
                cache.link(resolved)
            cache.remember(origin.revision, resolved.commit)
        return self._done(resolved.commit, cache)

    def _check_index(self, origin: Origin, resolved: Snapshot) -> None:
        """Refuses a commit whose index names missing files, before the download."""
        names = [file.name for file in resolved.files]
        if INDEX not in names:
            return
        read = self.retry.run(lambda: _object_in(INDEX, origin, resolved, MAX_INDEX_BYTES))
        places = read.get("weight_map")
        if isinstance(places, dict) and (flaw := index_flaw(places, names)):
            raise NotAModelError(f"commit {resolved.commit}: {flaw}")

    def _done(self, commit: str, cache: Cache) -> Fetched:
        folder = cache.snapshot_folder(commit)
        self.tell("complete", {"commit": commit, "folder": str(folder)})
        return Fetched(commit, folder)

    def _download(self, origin: Origin, resolved: Snapshot, cache: Cache) -> None:
        """All files, the largest first; the first that fails ends the others."""
        blobs = {file.etag: file for file in resolved.files}.values()
        total = sum(file.size_bytes for file in blobs)
        meter = Meter(total, self.clock, lambda now: self.tell("progress", now.fields()))
        self.tell("progress", meter.progress().fields())
        stop = threading.Event()
        download = Download(origin, resolved.commit, cache, self.retry, meter, stop)
        largest_first = sorted(blobs, key=lambda file: -file.size_bytes)
        with ThreadPoolExecutor(self.parallel) as threads:
            futures = [threads.submit(download.file, file) for file in largest_first]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()
                threads.shutdown(cancel_futures=True)
        self.tell("progress", meter.progress().fields())
        failed = [future.exception() for future in futures if not future.cancelled()]
        for error in failed:
            if error is not None and not isinstance(error, Stopped):
                raise error


def _object_in(name: str, origin: Origin, resolved: Snapshot, limit_bytes: int) -> dict[str, Any]:
    """The JSON object in one of the commit's files.

    Raises:
        NotAModelError: the file holds no JSON object. Other errors are those of the origin.
    """
    file = next(entry for entry in resolved.files if entry.name == name)
    body = b""
    with origin.content(resolved.commit, file, 0) as answer:
        for chunk in answer.chunks():
            body += chunk
            if len(body) > limit_bytes:
                raise NotAModelError(f"{file.name}: more than {limit_bytes} bytes")
    if body.startswith(LFS_POINTER):
        raise NotAModelError(f"{file.name} of {origin} {pointer_text(len(body))}")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise NotAModelError(f"{file.name} of {origin}: no JSON object")
    return parsed


@dataclass(frozen=True)
class Download:
    """The download of a commit's files; `file` may run in several threads."""

    origin: Origin
    commit: str
    cache: Cache
    retry: Retry
    meter: Meter
    stop: threading.Event

    def file(self, file: HubFile) -> None:
        """Downloads and verifies the file's blob; a corrupt blob is downloaded once more from its
        start.

        Raises:
            FileCorruptError, OSError, and what the origin raises.
        """
        self.meter.already_there(self.cache.size_there(file))
        if self.cache.blob(file).exists():
            return
        for _ in range(2):
            self._bytes(file)
            partial = self.cache.partial(file)
            flaw = self.origin.flaw(partial, file)
            if not flaw:
                partial.rename(self.cache.blob(file))
                return
            partial.unlink()
            self.meter.already_there(-file.size_bytes)
        raise FileCorruptError(f"{file.name} of {self.origin}: {flaw}")

    def _bytes(self, file: HubFile) -> None:
        partial = self.cache.partial(file)
        partial.touch()
        if partial.stat().st_size > file.size_bytes:
            os.truncate(partial, 0)
            self.meter.already_there(-file.size_bytes)
        self.retry.run(
            lambda: self._attempt(file, partial), lambda: partial.stat().st_size, self.stop
        )

    def _attempt(self, file: HubFile, partial: Path) -> None:
        offset = partial.stat().st_size
        if offset == file.size_bytes:
            return
        with (
            self.origin.content(self.commit, file, offset) as answer,
            partial.open("ab") as written,
        ):
            if not answer.continues:
                self.meter.already_there(-offset)
                written.seek(0)
                written.truncate()
            for chunk in answer.chunks():
                if self.stop.is_set():
                    raise Stopped
                written.write(chunk)
                self.meter.received(len(chunk))
                if written.tell() > file.size_bytes:
                    break
            written.flush()
            os.fsync(written.fileno())  # on disk before the marker lists the file
        self._check_size(file, partial.stat().st_size)

    def _check_size(self, file: HubFile, size: int) -> None:
        what = f"{file.name} of {self.origin}: {size} bytes came of {file.size_bytes}"
        if size > file.size_bytes:
            raise FileCorruptError(what)
        if size < file.size_bytes:
            raise HubUnreachableError(f"{what}, and the connection ended")
