"""Runs a request until its answer is whole: an engine that breaks off is followed by another one.

Knows neither how engines are found nor what an answer looks like.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web
from sluice_contract.http_errors import REQUEST_ID_HEADER

from sluice_router.attempts import Call, Reply
from sluice_router.dispatch import Dispatcher
from sluice_router.errors import AttemptFailedError, RouterError
from sluice_router.history import History
from sluice_router.relay import Relay
from sluice_router.telemetry import Telemetry

logger: Final = logging.getLogger("sluice.router")


class Answers:
    """Runs requests."""

    def __init__(self, dispatcher: Dispatcher, telemetry: Telemetry) -> None:
        self._dispatcher = dispatcher
        self._telemetry = telemetry

    async def run(
        self, call: Call, relay: Relay, on_reply: Callable[[Reply], None]
    ) -> web.StreamResponse:
        """Relay the answer; `on_reply` is told of each engine that has a part in it.

        Raises:
            RouterError: it is not whole, and nobody can go on with it.
        """
        history, broke = History(), None
        while True:
            try:
                async with self._dispatcher.open(call, history) as reply:
                    if broke is not None:
                        self._resumed(call, broke, reply)
                    on_reply(reply)
                    self._release(call, reply)
                    return await relay.run(reply, call.progress)
            except AttemptFailedError as failure:
                broke = failure
                if call.body is not None:
                    call.body.keep()
            except RouterError:
                if broke is not None:
                    self._telemetry.resume_failure()
                raise

    def _release(self, call: Call, reply: Reply) -> None:
        """Let the body go where no other engine can need it; else hold it while there is room."""
        if call.body is None:
            return
        if not reply.private or call.progress is None:
            call.body.release()
            return
        progress = call.progress

        def dropped() -> None:
            progress.forget()
            self._telemetry.resume_forgone()

        call.body.spare(dropped)

    def _resumed(self, call: Call, broke: AttemptFailedError, reply: Reply) -> None:
        self._telemetry.resumed(broke.reason)
        logger.warning(
            "%s: %s goes on with the answer after: %s (%s)",
            call.headers[REQUEST_ID_HEADER],
            reply.target.name,
            broke.error,
            broke.reason,
        )
