"""Connections that outlive their use: TLS takes leave of the other side, which may be slow."""

from __future__ import annotations

import asyncio


async def cut_connections() -> None:
    """Ends every connection of the running loop, which is to be closed."""
    transports = getattr(asyncio.get_running_loop(), "_transports")  # noqa: B009 (none of its API)
    for transport in list(transports.values()):
        transport.abort()
    await asyncio.sleep(0)  # in which the sockets are closed
