"""An engine's spans: who takes them, by its configuration. Knows no request."""

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
"""A request in the engine that answers it, from its arrival to the end of its answer."""
PREFILL: Final = "sluice.prefill"
"""Span from the arrival to the first token, where the prompt is computed: queue, then chunks."""
TRANSFER: Final = "sluice.transfer"
"""Span of a decode engine, from the arrival until the prompt is there and attested."""
DECODE: Final = "sluice.decode"
"""Span from the first token to the last."""


@contextmanager
def recorder(config: EngineConfig, process: str) -> Iterator[Record | None]:
    """Recorder of the spans of a process of the engine: `api` or `engine`.

    Raises:
        InvalidConfigError: there is a collector to send them to, and nothing to send them with.
    """
    pod = os.environ.get("POD_NAME") or socket.gethostname()
    resource = {"k8s.pod.name": pod, "sluice.role": config.role.value}
    with ExitStack() as stack:
        try:
            record = stack.enter_context(span_recorder(config.tracing, process, **resource))
        except ConfigError as error:
            raise InvalidConfigError(str(error)) from None
        yield record
