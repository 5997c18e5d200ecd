"""Makes one sample of a service from its routers' answers and the state of its pods. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineLoad, LoadReport, ServiceLoad


def sample_of(
    loads: Iterable[ServiceLoad], pools: Mapping[Role, PoolSample], time_seconds: float
) -> Sample:
    """The service as its routers see it. Waiting requests of all routers are added up; of each
    engine the freshest report counts. A router that has not found its engines yet is not
    counted."""
    answered = tuple(loads)
    waiting = sum(load.waiting_requests for load in answered)
    discovered = [load for load in answered if load.discovered]
    engines = _freshest(discovered) if discovered else None
    return Sample(time_seconds, pools, engines, waiting)


def _freshest(loads: Iterable[ServiceLoad]) -> tuple[EngineSample, ...]:
    best: dict[str, EngineLoad] = {}
    for engine in (engine for load in loads for engine in load.engines):
        if engine.report is None:
            continue
        freshest = best.get(engine.name)
        if freshest is None or _age(engine) < _age(freshest):
            best[engine.name] = engine
    return tuple(
        _engine(best[name], report) for name in sorted(best) if (report := best[name].report)
    )


def _age(engine: EngineLoad) -> float:
    return math.inf if engine.report_age_seconds is None else engine.report_age_seconds


def _engine(row: EngineLoad, report: LoadReport) -> EngineSample:
    return EngineSample(
        name=row.name,
        role=report.role,
        epoch=report.epoch,
        condition=row.condition,
        age_seconds=_age(row),
        revision=report.revision,
        max_running_requests=report.max_running_requests,
        figures=report.figures,
        slo=report.slo,
    )
