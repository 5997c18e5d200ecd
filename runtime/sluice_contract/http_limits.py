"""Most bytes and time that a request's head and body may take."""

from __future__ import annotations

from typing import Final

MAX_HEADERS: Final = 64

MAX_HEADER_BYTES: Final = 8190
"""Most bytes of one header, its name included, and of the request's target."""

MAX_HEAD_BYTES: Final = 131_072
"""Most bytes of target and headers in all, and of a chunked body's trailers."""

HEAD_SECONDS: Final = 60.0
"""Longest time from a connection's start, or a request's first byte, to the end of its head."""

BODY_SECONDS: Final = 60.0
"""Longest time that a body may take to arrive."""

IDLE_CONNECTION_SECONDS: Final = 75
"""How long an engine keeps an idle connection."""
