"""The routes that probes, Prometheus and the autoscaler see, on a port of their own.

Its answers name pod addresses, so clients must not reach it; and it answers however many requests
clients have sent.
"""

from __future__ import annotations

import json
from typing import Final

from aiohttp import web
from sluice_contract.wire.load import EngineLoad, ServiceLoad

from sluice_router.byte_budget import Budgets
from sluice_router.engines import Clock, EngineState, Fleet, condition
from sluice_router.errors import JSON_CONTENT_TYPE
from sluice_router.forward import Dispatcher
from sluice_router.lifecycle import Lifecycle
from sluice_router.telemetry import CONTENT_TYPE, RouterCounts, RouterLoad, Telemetry

MAX_WAIT_SECONDS: Final = 600


async def health(request: web.Request) -> web.Response:
    """The process is alive."""
    return _json({"status": "ok"})


class Monitoring:
    """The handlers."""

    def __init__(
        self,
        fleet: Fleet,
        dispatcher: Dispatcher,
        budgets: Budgets,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._budgets = budgets
        self._lifecycle = lifecycle
        self._telemetry = telemetry
        self._clock = clock

    def build_app(self) -> web.Application:
        """The application; the routes in this list are all there are."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", health),
                web.get("/ready", self.ready),
                web.get("/load", self.load),
                web.get("/picks", self.picks),
                web.get("/ledger", self.ledger),
                web.get("/metrics", self.metrics),
            ]
        )
        return app

    async def ready(self, request: web.Request) -> web.Response:
        """Whether the cluster may send requests here: also with no engines, but not draining."""
        discovered, draining = self._fleet.discovered, self._lifecycle.draining
        reason = "Draining" if draining else "Ready" if discovered else "NotDiscovered"
        body = {"ready": reason == "Ready", "engines": len(self._fleet.engines()), "reason": reason}
        return _json(body, 200 if reason == "Ready" else 503)

    async def load(self, request: web.Request) -> web.Response:
        """Load of the service: one summary for the autoscaler. With `wait`: answers when a request
        comes, or after that many seconds without one."""
        wait = _wait_seconds(request.query.get("wait", "0"))
        if wait is None:
            allowed = f"wait: allowed is a number of seconds, 0 to {MAX_WAIT_SECONDS}"
            return _json({"error": allowed}, 400)
        await self._lifecycle.quiet(wait)
        now = self._clock()
        summary = ServiceLoad(
            draining=self._lifecycle.draining,
            discovered=self._fleet.discovered,
            waiting_requests=self._dispatcher.waiting,
            engines=tuple(_row(engine, now) for engine in self._fleet.engines()),
            picks=dict(self._dispatcher.picks.counts),
            last_pick=self._dispatcher.picks.last,
            canary=self._dispatcher.trials.counts(self._fleet.canary),
        )
        text = summary.model_dump_json(by_alias=True, exclude_none=True)
        return web.Response(text=text, content_type=JSON_CONTENT_TYPE)

    async def picks(self, request: web.Request) -> web.Response:
        """Why engines were picked, newest first: of one request (`?request=ID`), or of the last."""
        picks = self._dispatcher.picks.recent(request.query.get("request"))
        rows = [
            {"requestId": pick.request_id, "reason": pick.reason, "message": pick.message}
            for pick in picks
        ]
        return _json({"picks": rows})

    async def ledger(self, request: web.Request) -> web.Response:
        """Ledger of the requests for completions since this router's start."""
        text = self._telemetry.ledger().model_dump_json(by_alias=True)
        return web.Response(text=text, content_type=JSON_CONTENT_TYPE)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus' exposition."""
        now = self._clock()
        states = [(engine.role, condition(engine, now)) for engine in self._fleet.engines()]
        dispatcher = self._dispatcher
        load = RouterLoad(self._lifecycle.inflight, dispatcher.waiting, self._budgets.held_bytes)
        dispatcher.trials.close_minute()
        counts = RouterCounts(dispatcher.picks.counts, dispatcher.trials.totals)
        text = self._telemetry.render(states, counts, load)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _wait_seconds(text: str) -> float | None:
    """None: it is not allowed."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= MAX_WAIT_SECONDS else None


def _row(engine: EngineState, now: float) -> EngineLoad:
    """Load of one engine without its adapters, which are long and no load, so that thousands of
    engines fit."""
    received = engine.received
    changes: dict[str, object] = {"adapters": {}, "adapters_failed": {}}
    return EngineLoad(
        name=engine.endpoint.name,
        url=engine.endpoint.url,
        condition=condition(engine, now),
        inflight_requests=engine.inflight,
        report=received.report.model_copy(update=changes) if received is not None else None,
        report_age_seconds=now - received.received_seconds if received is not None else None,
    )


def _json(body: dict[str, object], status: int = 200) -> web.Response:
    return web.Response(status=status, text=json.dumps(body), content_type=JSON_CONTENT_TYPE)
