"""AdaptersLoaded: whether the engines of a pool have the adapters that they should. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sluice_operator.api.conditions import Check
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.status import AdapterStatus
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.probes.adapters import EngineAdapters

LOADED: Final = "Loaded"
LOADING: Final = "Loading"
LOAD_FAILED: Final = "LoadFailed"
NO_ENGINE: Final = "NoEngine"
MAX_SHOWN: Final = 512
MAX_MESSAGE: Final = 1024


def adapter_statuses(observed: PoolObserved) -> list[AdapterStatus] | None:
    """Where each adapter is loaded, by name; None where no engine says."""
    reports = observed.adapters.values()
    loaded = Counter(name for report in reports for name in report.loaded)
    failed = Counter(name for report in reports for name in report.failed)
    why = {name: text for report in reports for name, text in report.failed.items()}
    return [
        AdapterStatus(
            name=name,
            loaded=loaded[name],
            failed=failed[name],
            message=why[name][:MAX_MESSAGE] if name in why else None,
        )
        for name in sorted(loaded | failed)[:MAX_SHOWN]
    ] or None


def adapters_loaded(observed: PoolObserved, spec: EnginePoolSpec) -> Check | None:
    """The condition; None of a pool without adapters."""
    if spec.adapters_digest is None:
        return None
    reports = observed.adapters
    if not reports:
        return Check("Unknown", NO_ENGINE, "No engine is ready that would load adapters.")
    done = {pod: report for pod, report in reports.items() if report.digest == spec.adapters_digest}
    for pod in sorted(done):
        if done[pod].failed:
            return Check("False", LOAD_FAILED, _failed(pod, done[pod]))
    count = f"{len(done)} of {len(reports)} ready engines have the adapters that are asked for"
    if len(done) < len(reports):
        return Check("False", LOADING, f"{count}.")
    return Check("True", LOADED, f"{count}.")


def _failed(pod: str, adapters: EngineAdapters) -> str:
    name, why = min(adapters.failed.items())
    more = len(adapters.failed) - 1
    rest = f"; so are {more} others" if more else ""
    return f"{name} is not loaded in {pod}: {why[:MAX_MESSAGE]}{rest}. The others are served."
