"""An engine's trace spans: their names, and the recorder that the configuration chooses. Knows no
request."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.engine import EngineConfig
from sluice_contract.wire.span_export import span_recorder
from sluice_contract.wire.spans import Record

from sluice_runtime.errors import InvalidConfigError

ENGINE: Final = "sluice.engine"
"""Span of a request in the engine that answers it, from arrival to the end of the answer."""
PREFILL: Final = "sluice.prefill"
"""Span from arrival to the first token, in the engine that computes the prompt: queue, then
chunks."""
TRANSFER: Final = "sluice.transfer"
"""Span in a decode engine, from arrival until the prompt's pages have arrived and are attested."""
DECODE: Final = "sluice.decode"
"""Span from the first token to the last."""


@contextmanager
def recorder(config: EngineConfig, process: str) -> Iterator[Record | None]:
    """Recorder of the spans of a process of the engine: `api` or `engine`.

    Raises:
        InvalidConfigError: a collector is configured, but the library that sends spans is not
            installed.
    """
    pod = os.environ.get("POD_NAME") or socket.gethostname()
    resource = {"k8s.pod.name": pod, "sluice.role": config.role.value}
    with ExitStack() as stack:
        try:
            record = stack.enter_context(span_recorder(config.tracing, process, **resource))
        except ConfigError as error:
            raise InvalidConfigError(str(error)) from None
        yield record
