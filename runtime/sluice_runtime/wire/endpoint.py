"""Where API process and engine process meet. Apart from `transport`, because the launcher, before
which neither process starts, would load ZMQ for nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_endpoint() -> Iterator[str]:
    """A ZMQ endpoint in a new folder (mode 0700), which is removed afterwards."""
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = runtime_folder if os.access(runtime_folder, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="sluice-", dir=parent))
    try:
        yield f"ipc://{folder}/engine.sock"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
