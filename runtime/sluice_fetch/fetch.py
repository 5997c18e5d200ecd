"""The whole way: revision → commit → files → space → bytes → snapshot. Prints through `tell`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from sluice_contract.config.model_facts import ResolvedModel, facts_of

from sluice_fetch.cache import Cache
from sluice_fetch.download import Download
from sluice_fetch.errors import from_disk
from sluice_fetch.hub import config as config_of
from sluice_fetch.hub import look_up
from sluice_fetch.progress import Meter
from sluice_fetch.retry import Retry, Stopped
from sluice_fetch.settings import COMMIT, Source
from sluice_fetch.snapshot import MODEL, Selection, Snapshot, snapshot

Tell = Callable[[str, Mapping[str, object]], None]
"""An event and its fields."""


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

    def resolve(self, source: Source) -> Snapshot:
        """The commit that the revision is now, and the files that an engine reads of it."""
        resolved = snapshot(self.selection, *self.retry.run(lambda: look_up(source)))
        fields = {"repository": source.repository, "revision": source.revision}
        size = {"files": len(resolved.files), "total": resolved.size_bytes}
        self.tell("resolved", {**fields, "commit": resolved.commit, **size})
        return resolved

    def facts(self, source: Source) -> ResolvedModel:
        """Facts about the revision's current commit, without downloading it."""
        resolved = self.resolve(source)
        config = self.retry.run(lambda: config_of(source, resolved))
        facts = facts_of(config).model_dump()
        return ResolvedModel(**facts, commit=resolved.commit, bytes=resolved.size_bytes)

    def fetch(self, source: Source, root: Path) -> Fetched:
        """The snapshot folder, complete and verified. A complete commit asks no hub.

        Raises:
            FetchError: says why, with the reason's name.
        """
        cache = Cache(root, source.repository)
        commit = source.revision
        if COMMIT.fullmatch(commit) and cache.is_complete(commit, self.selection):
            return self._done(commit, cache)
        try:
            return self._missing(source, cache)
        except OSError as error:
            raise from_disk(error) from None

    def _missing(self, source: Source, cache: Cache) -> Fetched:
        resolved = self.resolve(source)
        with cache.exclusive():
            if not cache.is_complete(resolved.commit, self.selection):
                cache.check_space(resolved)
                self._download(source, resolved, cache)
                cache.link(resolved)
            cache.remember(source.revision, resolved.commit)
        return self._done(resolved.commit, cache)

    def _done(self, commit: str, cache: Cache) -> Fetched:
        folder = cache.snapshot_folder(commit)
        self.tell("complete", {"commit": commit, "folder": str(folder)})
        return Fetched(commit, folder)

    def _download(self, source: Source, resolved: Snapshot, cache: Cache) -> None:
        """All files, the largest first; the first that fails ends the others."""
        blobs = {file.etag: file for file in resolved.files}.values()
        total = sum(file.size_bytes for file in blobs)
        meter = Meter(total, self.clock, lambda now: self.tell("progress", now.fields()))
        self.tell("progress", meter.progress().fields())
        stop = threading.Event()
        download = Download(source, resolved.commit, cache, self.retry, meter, stop)
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
