"""One replay in the figures by which policies are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.step_times import StepTimes
from sluice_simulator.autoscale.work import Work
from sluice_simulator.percentiles import percentiles


@dataclass(frozen=True, slots=True)
class Change:
    """A decision that changed a pool."""

    seconds: float
    role: Role
    before: int
    after: int
    reason: str
    message: str


@dataclass(slots=True)
class Trail:
    """Events of a replay, as recorded by the fleet."""

    works: list[Work] = field(default_factory=list)
    replica_seconds: float = 0.0
    """Seconds of pods that hold a GPU: starting, serving or draining."""
    ended_seconds: float = 0.0
    changes: list[Change] = field(default_factory=list)
    peak: int = 0
    """Maximum pods that held a GPU at once."""
    counts: list[tuple[float, int, int]] = field(default_factory=list)
    """Samples at the beginning and at each tick: seconds, pods that hold a GPU, pods that serve."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one policy on one trace."""

    requests: int
    """Number of requests that count: see `judged_from_seconds`."""
    attained: float
    """Share of them whose promise was kept."""
    attainable: float
    """Share whose promise could be kept: the others are promised less time than an idle engine
    takes."""
    replica_hours: float
    ttft_p50_seconds: float
    ttft_p99_seconds: float
    itl_p99_seconds: float
    peak_replicas: int
    changes: int
    regretted: int
    """Changes that were undone within the time of a start."""

    @property
    def attainment(self) -> float:
        """Share of kept promises among those that could be kept."""
        return self.attained / self.attainable if self.attainable else 0.0


def outcome(trail: Trail, constants: Constants) -> Outcome:
    """The figures of a finished replay: every request has ended, so late ones count as missed."""
    promise, since = constants.promise, constants.judged_from_seconds
    works = [work for work in trail.works if work.arrival_seconds >= since]
    ttft = [ttft_seconds(work) for work in works]
    itl = [itl_seconds(work) for work in works]
    kept = sum(map(promise.kept, ttft, itl))
    longest = StepTimes(constants).longest_prompt(promise.ttft_seconds)
    ttft_p50_seconds, ttft_p99_seconds = percentiles(ttft, (0.5, 0.99))
    return Outcome(
        requests=len(works),
        attained=kept / len(works),
        attainable=sum(work.prompt_tokens <= longest for work in works) / len(works),
        replica_hours=trail.replica_seconds / 3600,
        ttft_p50_seconds=ttft_p50_seconds,
        ttft_p99_seconds=ttft_p99_seconds,
        itl_p99_seconds=percentiles(itl, (0.99,))[0],
        peak_replicas=trail.peak,
        changes=len(trail.changes),
        regretted=_regretted(trail.changes, constants.boot_seconds),
    )


def _regretted(changes: Sequence[Change], seconds: float) -> int:
    """Changes of a pool that its next one undid within `seconds`, in part or wholly."""
    last: dict[Role, Change] = {}
    count = 0
    for change in changes:
        before = last.get(change.role)
        if before is not None and change.seconds - before.seconds <= seconds:
            count += (before.after > before.before) != (change.after > change.before)
        last[change.role] = change
    return count


def kept_promise(work: Work, constants: Constants) -> bool:
    """Whether the promise of the request was kept."""
    return constants.promise.kept(ttft_seconds(work), itl_seconds(work))


def ttft_seconds(work: Work) -> float:
    return work.first_token_seconds - work.arrival_seconds


def itl_seconds(work: Work) -> float:
    """Mean ITL of the answer; 0 for one token."""
    return (work.ended_seconds - work.first_token_seconds) / max(1, work.output_tokens - 1)
