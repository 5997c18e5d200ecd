"""Reads a trace from a file, whose suffix tells the format. Traces are data, kept outside the
sources."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from sluice_simulator.errors import UnusableFileError
from sluice_simulator.traces import azure, mooncake
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

Reader = Callable[[Path, Iterable[str]], list[TraceRequest]]

READERS: Final[Mapping[str, Reader]] = {
    ".jsonl": mooncake.read_lines,
    ".csv": azure.read_lines,
}


def read_trace(path: Path) -> Trace:
    """The trace in the file at `path`, named after it.

    Raises:
        UnusableFileError: the file does not exist, is not text, or holds no request.
        TraceError: a line that cannot be read.
    """
    reader = READERS.get(path.suffix)
    if reader is None:
        if not path.exists():
            raise UnusableFileError(f"{path}: {os.strerror(errno.ENOENT)}")
        allowed = ", ".join(f"{suffix} ({_of(suffix)})" for suffix in READERS)
        raise UnusableFileError(f"{path}: {path.suffix!r} is not allowed; allowed: {allowed}")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            requests = reader(path, lines)
    except OSError as error:
        raise UnusableFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{path}: not UTF-8 text") from None
    if not requests:
        raise UnusableFileError(f"{path}: holds no request")
    return trace_of(path.stem, requests)


def _of(suffix: str) -> str:
    return READERS[suffix].__module__.rpartition(".")[2]
