"""Loads the adapters of an engine's configuration, and those of a file that changes while it runs.

Files are read in a separate thread, so that no step waits for them. An adapter that left the file
takes no new requests; its memory is freed after its last request. If an adapter's new version
cannot be loaded, the old one stays. Knows no row and no slot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sluice_contract.base import ConfigError
from sluice_contract.config.adapters import AdapterRef, adapters_digest, parse_adapters_file

from sluice_runtime.engine.adapters import AdapterTable
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.adapters import Adapter, adapter_folder, adapter_key
from sluice_runtime.wire.messages import Adapters, LoadedAdapter

_log = logging.getLogger("sluice.engine")

MAX_WHY: Final = 512
"""Longest reason, in characters, that a load report gives for an adapter that is not loaded; the
log has all of it."""
POLL_SECONDS: Final = 1.0
RETRY_POLLS: Final = 10
"""Polls of the file between two attempts to load an adapter that failed."""


@dataclass(frozen=True)
class Loaded:
    """An adapter in the host's memory."""

    ref: AdapterRef
    key: str
    folder: Path
    adapter: Adapter


@dataclass(frozen=True)
class FileAdapters:
    """Adapters that the file names: the loaded ones, and why each of the others could not be
    loaded."""

    loaded: tuple[Loaded, ...] = ()
    failed: Mapping[AdapterRef, str] = field(default_factory=dict)
    digest: str = ""


class AdapterScheduler(Protocol):
    """The part of `scheduler.scheduler.Scheduler` that is used here."""

    def take_adapters(self, folders: Mapping[str, str]) -> None: ...

    def has_adapter(self, key: str) -> bool: ...


class AdapterLoader:
    """Loads adapters from the configuration and from a file. All ranks follow the file; requests
    may name adapters that the first rank has loaded. Used by the engine's loop and by the thread
    that follows the file, which replaces `_in_file`."""

    def __init__(self, table: AdapterTable, names: Iterable[str], file: Path | None) -> None:
        """`names`: the model's names, which no adapter may have. `file`: the file to follow, if
        any."""
        self.table = table
        self._names = frozenset(names)
        self._file = file
        self._configured: tuple[Loaded, ...] = ()
        """Adapters of the engine's own configuration; they stay."""
        self._in_file = FileAdapters()
        """Adapters of the file; always a whole value, replaced at once."""
        self._announced: FileAdapters | None = None
        """Value of `_in_file` that the scheduler was told last."""
        self._leaving: dict[str, None] = {}
        """Keys of adapters that take no new requests, in order."""
        self._unread = ""
        """Reason why the last attempt to read the file failed."""

    def start(self, refs: Iterable[AdapterRef]) -> None:
        """Loads `refs`, and the adapters that the file names now.

        Raises:
            ModelLoadError: one of `refs` cannot be used; one line that says why.
        """
        self._configured = tuple(map(self._load, refs))
        if self._file is not None:
            self.look(retries=True)

    @contextmanager
    def following(self, on_change: Callable[[], None]) -> Iterator[None]:
        """Follows the file inside this context: changes are loaded, and `on_change` is called after
        each."""
        if self._file is None:
            yield
            return
        closed = threading.Event()
        # A daemon thread, so that the engine can end while a file is read.
        arguments = (on_change, closed)
        threading.Thread(target=self._follow, args=arguments, name="adapters", daemon=True).start()
        try:
            yield
        finally:
            closed.set()

    @property
    def adapters(self) -> Adapters:
        """Adapters that the scheduler knows, and those that could not be loaded."""
        in_file = self._announced or FileAdapters()
        return Adapters(
            [LoadedAdapter(a.ref.name, a.key) for a in (*self._configured, *in_file.loaded)],
            {ref.name: why[:MAX_WHY] for ref, why in in_file.failed.items()},
            in_file.digest,
        )

    def take_change(self, scheduler: AdapterScheduler) -> Adapters | None:
        """Tells the scheduler which adapters requests may name, and frees those that no request
        uses any more. Called between steps. Returns all adapters there are now, if they have
        changed."""
        for key in [key for key in self._leaving if not scheduler.has_adapter(key)]:
            self.table.forget(key)
            del self._leaving[key]
        in_file, before = self._in_file, self._announced
        if in_file is before:
            return None
        self._announced = in_file
        current = {a.key: a for a in (*self._configured, *in_file.loaded)}
        gone = dict.fromkeys(adapter.key for adapter in (before.loaded if before else ()))
        self._leaving = {key: None for key in self._leaving | gone if key not in current}
        for key, loaded in current.items():
            self.table.add(key, loaded.adapter)
        scheduler.take_adapters({key: str(loaded.folder) for key, loaded in current.items()})
        return self.adapters

    def take_change_beside_rows(self) -> None:
        """Does what `take_change` does, on a rank without a scheduler: an adapter that left the
        file stays until no row uses it."""
        self.take_change(_Rows(self.table))

    def _follow(self, on_change: Callable[[], None], closed: threading.Event) -> None:
        polls = 0
        while not closed.wait(POLL_SECONDS):
            polls += 1
            if self.look(retries=polls % RETRY_POLLS == 0):
                on_change()

    def look(self, *, retries: bool = False) -> bool:
        """Loads adapters that are new in the file; returns whether anything has changed. `retries`:
        also tries those that could not be loaded before."""
        assert self._file is not None
        file, before = self._file, self._in_file
        try:
            content = file.read_bytes()
            refs = parse_adapters_file(content)
        except (OSError, ConfigError) as error:
            self._log_unread(f"{file}: {getattr(error, 'strerror', None) or error}")
            return False
        digest = adapters_digest(content)
        if digest == before.digest and not (retries and before.failed):
            return False
        failed = dict[AdapterRef, str]()
        now = FileAdapters(tuple(self._loaded(refs, failed)), failed, digest)
        for ref, why in failed.items():
            if before.failed.get(ref) != why:
                _log.error("adapter %s is not loaded: %s", ref.name, why)
        if now == before:
            return False
        self._in_file = now
        return True

    def _loaded(
        self, refs: Iterable[AdapterRef], failed: dict[AdapterRef, str]
    ) -> Iterator[Loaded]:
        """Adapters of `refs` that are loaded now or could be loaded. Why others could not is
        written to `failed`; their earlier version stays, if there is one."""
        known = {loaded.ref: loaded for loaded in self._in_file.loaded}
        before = {loaded.ref.name: loaded for loaded in self._in_file.loaded}
        names = self._names | {loaded.ref.name for loaded in self._configured}
        for ref in refs:
            if ref.name in names:
                failed[ref] = f"name: {ref.name!r} is not allowed; allowed: one that is not in use"
            elif ref in known:
                yield known[ref]
            else:
                try:
                    yield self._load(ref)
                except ModelLoadError as error:
                    failed[ref] = str(error)
                except Exception as error:  # one adapter's failure must not stop the others
                    failed[ref] = f"{type(error).__name__}: {error}"
                if ref in failed and ref.name in before:
                    failed[ref] += "; the version before is served"
                    yield before[ref.name]
            names |= {ref.name}

    def _load(self, ref: AdapterRef) -> Loaded:
        folder = adapter_folder(ref.uri)
        loaded = Loaded(ref, adapter_key(ref.name, folder), folder, self.table.read(folder))
        _log.info("adapter %s is loaded from %s", loaded.key, folder)
        return loaded

    def _log_unread(self, why: str) -> None:
        if why != self._unread:
            _log.error("adapters stay as they are: %s", why)
        self._unread = why


class _Rows:
    """Stand-in for the scheduler that looks at rows instead of requests."""

    def __init__(self, table: AdapterTable) -> None:
        self._table = table

    def take_adapters(self, folders: Mapping[str, str]) -> None:
        """Does nothing: the first rank decides which rows have which adapter."""

    def has_adapter(self, key: str) -> bool:
        return self._table.has_row_of(key)
