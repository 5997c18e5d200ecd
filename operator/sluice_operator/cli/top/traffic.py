"""Traffic of a service: requests and tokens a second, and TTFT, from two looks at it.

Pure. Engines and routers that one of the looks lacks, or that have restarted between them, do not
count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import LoadReport

from sluice_operator.cli.top.snapshot import Key, RouterCounts, Snapshot

PERCENTILES: Final = (50, 95)


class TrafficRates(NamedTuple):
    """What happened between two looks, or since the routers started."""

    seconds: float | None
    """Time between the looks; None: there was one look, so TTFT alone is known."""
    requests_per_second: float | None
    """Requests for completions that ended."""
    prompt_tokens_per_second: float | None
    """Prompt tokens that were not in the prefix cache."""
    tokens_per_second: float | None
    """Generated tokens."""
    ttft_seconds: tuple[float, ...] | None
    """TTFT of streams by `PERCENTILES`, infinite beyond the last bucket; None without streams."""


class EngineRates(NamedTuple):
    """Tokens a second of one engine."""

    role: Role
    prompt: float
    generated: float

    @property
    def computed(self) -> float:
        """Tokens of the role's own work: of prompts in role prefill, else generated ones."""
        return self.prompt if self.role is Role.PREFILL else self.generated


def traffic(key: Key, snapshot: Snapshot) -> TrafficRates | None:
    """Traffic of a service; None where nothing is known."""
    counts, before = snapshot.counts.get(key, {}), snapshot.before
    if before is None:
        ttft = _ttft(counts, {})
        return TrafficRates(None, None, None, None, ttft) if ttft is not None else None
    earlier = {
        name: count
        for name, count in before.counts.get(key, {}).items()
        if name in counts and _ended(counts[name]) >= _ended(count)
    }
    later = {name: counts[name] for name in earlier}
    seconds = (snapshot.now - before.now).total_seconds()
    rates = engine_rates(key, snapshot).values()
    if seconds <= 0 or not (later or rates):
        return None
    ended = sum(_ended(later[name]) - _ended(earlier[name]) for name in later)
    return TrafficRates(
        seconds,
        ended / seconds if later else None,
        sum(rate.prompt for rate in rates if rate.role is not Role.DECODE) if rates else None,
        sum(rate.generated for rate in rates if rate.role is not Role.PREFILL) if rates else None,
        _ttft(later, earlier),
    )


def engine_rates(key: Key, snapshot: Snapshot) -> Mapping[str, EngineRates]:
    """Rates of the engines that both looks have, by pod."""
    if snapshot.before is None:
        return {}
    earlier = dict(_reports(key, snapshot.before))
    rates = {}
    for name, report in _reports(key, snapshot):
        former = earlier.get(name)
        if former is None or former.epoch != report.epoch:
            continue
        seconds = report.time_seconds - former.time_seconds
        if seconds > 0:
            now, then = report.figures, former.figures
            prompt = (now.prompt_tokens_total - then.prompt_tokens_total) / seconds
            generated = (now.generated_tokens_total - then.generated_tokens_total) / seconds
            rates[name] = EngineRates(report.role, prompt, generated)
    return rates


def ledger(key: Key, snapshot: Snapshot) -> Mapping[str, int] | None:
    """Ended requests of all ready routers by fate; None where they could not be read."""
    counts = snapshot.counts.get(key)
    if counts is None:
        return None
    fates = dict.fromkeys(fate for count in counts.values() for fate in count.fates)
    return {fate: sum(count.fates.get(fate, 0) for count in counts.values()) for fate in fates}


def _reports(key: Key, snapshot: Snapshot) -> Iterator[tuple[str, LoadReport]]:
    of_router = snapshot.loads.get(key)
    for engine in of_router.load.engines if of_router is not None else ():
        if engine.report is not None:
            yield engine.name, engine.report


def _ended(counts: RouterCounts) -> int:
    return sum(counts.fates.values())


def _ttft(
    later: Mapping[str, RouterCounts], earlier: Mapping[str, RouterCounts]
) -> tuple[float, ...] | None:
    """Percentiles of the streams that began after `earlier`; None without one."""
    buckets: dict[float, int] = {}
    for name, counts in later.items():
        former = earlier[name].first_tokens if name in earlier else {}
        for bound, count in counts.first_tokens.items():
            buckets[bound] = buckets.get(bound, 0) + count - former.get(bound, 0)
    if not buckets.get(math.inf):
        return None
    return tuple(_percentile(buckets, percent) for percent in PERCENTILES)


def _percentile(buckets: Mapping[float, int], percent: int) -> float:
    """Seconds, interpolated within a bucket as Prometheus' `histogram_quantile` does."""
    rank = buckets[math.inf] * percent / 100
    lower, below = 0.0, 0
    for bound, count in buckets.items():
        if count >= rank:
            if math.isinf(bound):
                break
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return math.inf
