"""aiohttp's inner names that the router relies on, looked up before it starts.

`connections.py` and `relay.py` read or override them. A patch release may rename one: then every
connection would fail, or a limit would silently be none.
"""

from __future__ import annotations

from typing import Final

import aiohttp
from aiohttp import web

ALLOWED: Final = ">=3.14.4,<3.15"
"""Versions of aiohttp on which the router runs; pyproject.toml has the same."""
CONNECTION_NAMES: Final = (
    "_buffer_paused", "_close", "_current_request", "_drain_helper", "_force_close", "_loop",
    "_manager", "_max_msg_queue_size", "_messages", "_pause_transport_reading", "_request_count",
    "_resume_reading_if_drained",
)  # fmt: skip
"""Attributes of `web.RequestHandler` that `Connection` reads or overrides."""
RESPONSE_NAMES: Final = ("_send_headers_immediately",)
"""Attributes of `web.StreamResponse` that an answer overrides."""
MODULE_NAMES: Final = ("RequestHandler", "RequestKey", "StreamResponse")
"""Names of `aiohttp.web` in use that some releases lack."""


class UnsupportedLibraryError(Exception):
    """The installed aiohttp lacks names that the router relies on."""


def check_library() -> None:
    """Return where the installed aiohttp has every inner name.

    Raises:
        UnsupportedLibraryError: it lacks one; the message is one line for a person.
    """
    missing = [f"aiohttp.web.{name}" for name in MODULE_NAMES if not hasattr(web, name)]
    for owner, names in {
        "RequestHandler": CONNECTION_NAMES,
        "StreamResponse": RESPONSE_NAMES,
    }.items():
        known = getattr(web, owner, None)
        missing += [f"aiohttp.web.{owner}.{name}" for name in names if not hasattr(known, name)]
    if missing:
        raise UnsupportedLibraryError(
            f"aiohttp {aiohttp.__version__} has no {', '.join(missing)}; allowed: {ALLOWED}"
        )
