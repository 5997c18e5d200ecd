"""Downloads one file into the cache: resumes the partial file of a killed process, verifies, then
renames it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from sluice_fetch.cache import Cache
from sluice_fetch.errors import FileCorruptError, HubUnreachableError
from sluice_fetch.progress import Meter
from sluice_fetch.retry import Retry, Stopped
from sluice_fetch.snapshot import HubFile, Origin


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
