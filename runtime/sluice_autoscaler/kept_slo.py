"""The share of answers that kept the service's slo, as engines count them.

No decision follows from it: it shows people what came of the decisions. Engines that drain count
too, as they finish answers.
"""

from __future__ import annotations

from typing import Final

from sluice_autoscaler.decision import Answered
from sluice_autoscaler.history import History
from sluice_autoscaler.reports import possible
from sluice_autoscaler.sample import Sample

WINDOW_SECONDS: Final = 300.0


def answered_since(before: Sample | None, sample: Sample) -> Answered:
    """What ended between two samples. An engine counts from its second sample."""
    earlier = {engine.name: engine for engine in (before.engines if before else None) or ()}
    requests = in_time = 0
    for engine in sample.engines or ():
        old = earlier.get(engine.name)
        if old is None or old.epoch != engine.epoch or not (possible(old) and possible(engine)):
            continue
        ended = _increase(old.slo_requests_total, engine.slo_requests_total)
        requests += ended
        in_time += min(ended, _increase(old.slo_in_time_total, engine.slo_in_time_total))
    return Answered(requests, in_time)


def in_time_percent(history: History) -> float | None:
    """Of the last five minutes, rounded down to a tenth; None: no answer that counts has ended."""
    if history.last is None:
        return None
    since = history.last.sample.time_seconds - WINDOW_SECONDS
    answered = [tick.decision.answered for tick in history.since(since)]
    requests = sum(ended.requests for ended in answered)
    in_time = sum(ended.in_time for ended in answered)
    return 1000 * in_time // requests / 10 if requests else None


def _increase(old: int | None, new: int | None) -> int:
    return 0 if old is None or new is None else max(0, new - old)
