"""The one request that an engine of a single role serves by itself: the health probe."""

from __future__ import annotations

from sluice_runtime.wire.messages import Generate


def is_probe(message: Generate) -> bool:
    """A token for a token: what /health_generate asks for."""
    return len(message.prompt_ids) == 1 and message.max_tokens == 1 and message.grammar is None
