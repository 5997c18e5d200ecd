"""The fleet as others see it: the service's load summary and the engines' conditions.

Pure: reads states and a time, returns values.
"""

from __future__ import annotations

from sluice_contract.service_load import EngineCondition, EngineLoad, ServiceLoad

from sluice_router.engines import EngineState, condition
from sluice_router.fleet import Fleet


def service_load(fleet: Fleet, now: float, *, draining: bool, waiting: int) -> ServiceLoad:
    """One row an engine, and what waits here."""
    return ServiceLoad(
        draining=draining,
        discovered=fleet.discovered,
        waiting_requests=waiting,
        engines=tuple(_row(engine, now) for engine in fleet.engines()),
    )


def conditions(fleet: Fleet, now: float) -> tuple[EngineCondition, ...]:
    """Every engine's condition."""
    return tuple(condition(engine, now) for engine in fleet.engines())


def _row(engine: EngineState, now: float) -> EngineLoad:
    received = engine.received
    return EngineLoad(
        name=engine.endpoint.name,
        url=engine.endpoint.url,
        condition=condition(engine, now),
        inflight_requests=engine.inflight,
        report=received.report if received is not None else None,
        report_age_seconds=now - received.received_seconds if received is not None else None,
    )
