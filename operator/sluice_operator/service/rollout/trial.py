"""One step of a canary that the operator judges: what routers counted and engines did since it
began, and the verdict.

Pure. All of it is in the revision's state, so an operator that is killed loses nothing that was
recorded, and a verdict is recorded together with its counts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts, TrialCounts

from sluice_operator.api.scaling import CanarySpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.engine_ends import PodSeen, often_ended, pods_seen
from sluice_operator.service.rollout.judge import Counts, Evidence, Judge, Verdict, trials_needed
from sluice_operator.service.rollout.rates import has_no_more_requests, slower

Signal = Literal["errors", "slo"]
SIGNALS: Final[Mapping[Signal, str]] = {"errors": "errors", "slo": "late answers"}
"""What is judged, for people."""
LEVEL: Final = 0.01
"""Probability of a wrong verdict about a canary, of all signals and steps together."""
BASE_RATE: Final = 0.001
"""Share of bad keys that previews assume."""
RECORD_SECONDS: Final = 60.0
"""Least time between two records of counts: routers count minutes, and each record is a write."""
WARM_MINUTES: Final = 5.0
"""Time after which caches of prefixes of new engines count as warm: reports do not show how full
they are."""
STALLED: Final = 10
"""A step without a verdict is stalled after so many times its `minutes`."""
FIELDS: Final = tuple(field.name for field in fields(TrialCounts))


class CanaryView(NamedTuple):
    """What is seen of a canary now."""

    shares: Mapping[Role, CanaryShare]
    pods: tuple[Manifest, ...] = ()
    """Engines of the new revisions."""
    looks: tuple[Look, ...] = ()
    """The last answers of the routers; empty until the step's engines are ready."""

    def counts(self) -> Mapping[str, CanaryCounts]:
        """The newest counts of these revisions, by the epoch of their router."""
        names = _names(self.shares, "revision"), _names(self.shares, "former")
        counts = self.looks[-1].counts
        return {c.epoch: c for c in counts if (c.revision, c.former) == names}


@dataclass(frozen=True)
class Trial:
    """What was learnt in a step."""

    began: str = ""
    """UTC time of the first look; empty before."""
    looked: str = ""
    """UTC time of the last record."""
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Counts of each router as they were recorded last, by epoch: new revision, then former."""
    evidence: Mapping[Signal, Evidence] = field(default_factory=dict)
    pods: Mapping[str, PodSeen] | None = None
    """Engines of the new revision, by pod; None: no engine was looked at yet."""
    heavy_share: float = 0.0
    """Share of one key in the canary's requests, if large."""

    @classmethod
    def of(cls, learnt: Mapping[str, Any]) -> Trial:
        """What is noted in a state; nothing where somebody has broken it."""
        try:
            pods = learnt.get("pods")
            began, looked = (str(learnt.get(name, "")) for name in ("began", "looked"))
            if began or looked:
                _ = datetime.fromisoformat(began), datetime.fromisoformat(looked)
            return cls(
                began,
                looked,
                {str(epoch): [*map(int, seen)] for epoch, seen in learnt.get("seen", {}).items()},
                {name: Evidence.of(each) for name, each in learnt.get("evidence", {}).items()},
                None if pods is None else {name: PodSeen(*seen) for name, seen in pods.items()},
                float(learnt.get("heavyShare", 0.0)),
            )
        except (TypeError, ValueError, KeyError, AttributeError, AssertionError):
            return cls()

    def to_json_dict(self) -> Manifest:
        """For the state."""
        pods = None if self.pods is None else {name: [*pod] for name, pod in self.pods.items()}
        written: Manifest = {
            "began": self.began,
            "looked": self.looked,
            "seen": {epoch: [*seen] for epoch, seen in self.seen.items()},
            "evidence": {name: asdict(each) for name, each in self.evidence.items()},
            "heavyShare": self.heavy_share,
        }
        kept = {key: value for key, value in written.items() if value}
        return kept if pods is None else kept | {"pods": pods}

    @property
    def minutes(self) -> float:
        """Minutes from the first look to the last record."""
        if not self.began:
            return 0.0
        began, looked = (datetime.fromisoformat(time) for time in (self.began, self.looked))
        return (looked - began).total_seconds() / 60

    def with_look(self, view: CanaryView, signals: Iterable[Signal]) -> Trial:
        """The trial with the newest look. The first one of a step is its beginning: what routers
        counted before belongs to the step before. A router that is new since then has counted in
        this step alone; one that did not answer brings both sides' counts with its next answer."""
        time = view.looks[-1].time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        counts = view.counts()
        seen = {epoch: _flat(each) for epoch, each in counts.items()}
        after = replace(
            self,
            began=self.began or time,
            looked=time,
            seen={**self.seen, **seen},
            heavy_share=max((c.heavy_share or 0.0 for c in counts.values()), default=0.0),
        )
        if not self.began:
            return after
        added = [_added(now, self.seen.get(epoch)) for epoch, now in seen.items()]
        if not added:
            return after
        total = [*map(sum, zip(*added, strict=True))]
        new, former = (
            TrialCounts(**dict(zip(FIELDS, side, strict=True)))
            for side in (total[: len(FIELDS)], total[len(FIELDS) :])
        )
        return replace(
            after,
            evidence={
                **self.evidence,
                **{
                    signal: self.evidence.get(signal, Evidence()).after(
                        _counts(signal, new), _counts(signal, former)
                    )
                    for signal in signals
                },
            },
        )

    def is_due(self, view: CanaryView) -> bool:
        """Whether there is a look to record."""
        if not view.looks:
            return False
        if not self.looked:
            return True
        passed = view.looks[-1].time - datetime.fromisoformat(self.looked)
        return passed.total_seconds() >= RECORD_SECONDS


@dataclass(frozen=True)
class StepJudge:
    """Judges the steps of one spec."""

    spec: CanarySpec
    has_slo: bool

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What trials are judged by."""
        errors: tuple[Signal, ...] = ("errors",) if self.spec.judge.errors else ()
        return (*errors, "slo") if self.spec.judge.slo and self.has_slo else errors

    def judge(self, routers: int = 1) -> Judge:
        """The judge of one signal in one step."""
        parts = max(1, len(self.signals)) * len(self.spec.steps)
        return Judge(self.spec.judge.margin_points / 1000, LEVEL / parts, max(1, routers))

    def keys_needed(self, percent: int, routers: int) -> int:
        """About how many keys of the canary the verdict "same" takes where `BASE_RATE` of them are
        bad on both sides. Each of so many routers sees all of them."""
        judge = self.judge()
        return routers * trials_needed(BASE_RATE, judge.margin, judge.level, percent / 100)

    def after(self, state: CanaryState, view: CanaryView) -> CanaryState:
        """The state with what is seen now: another step or a verdict, if it follows. A verdict
        stays."""
        if state.verdict is not None:
            return state
        trial = Trial.of(state.learnt)
        if self.spec.judge.errors:
            trial = replace(trial, pods=pods_seen(trial.pods, view.pods))
            if why := often_ended(trial.pods or {}, view.pods):
                return self._worse(state, trial, why)
        if not trial.is_due(view):
            return replace(state, learnt=trial.to_json_dict())
        compared = self._compared(trial, view)
        trial = trial.with_look(view, compared)
        verdicts = self.verdicts(trial)
        for signal in self.signals:
            if verdicts[signal] == "worse":
                return self._worse(state, trial, rates_text(signal, trial.evidence[signal]))
        if self.spec.judge.slo and (why := slower(view.looks, view.shares)):
            return self._worse(state, trial, why)
        state = replace(state, learnt=trial.to_json_dict())
        is_same = compared and all(verdicts[signal] == "same" for signal in compared)
        if is_same and trial.minutes >= self.spec.minutes:
            return replace(state.next_step(len(self.spec.steps)), why=self.text(trial))
        return state

    def verdicts(self, trial: Trial) -> dict[Signal, Verdict]:
        """The verdict of each signal."""
        judge = self.judge(len(trial.seen))
        return {
            signal: judge.verdict(trial.evidence.get(signal, Evidence())) for signal in self.signals
        }

    def _compared(self, trial: Trial, view: CanaryView) -> tuple[Signal, ...]:
        """The signals that this look counts for. Latencies only while the canary's engines
        get no more requests."""
        is_slo = trial.minutes >= WARM_MINUTES and has_no_more_requests(view.looks, view.shares)
        return tuple(signal for signal in self.signals if signal != "slo" or is_slo)

    def _worse(self, state: CanaryState, trial: Trial, why: str) -> CanaryState:
        ends = self.spec.on_worse == "Halt"
        verdict: Literal["worse", "held"] = "worse" if ends else "held"
        return replace(state, verdict=verdict, why=why, learnt=trial.to_json_dict())

    def is_stalled(self, trial: Trial) -> bool:
        """Whether the step should have had its verdict long ago."""
        return bool(self.signals) and trial.minutes >= STALLED * self.spec.minutes

    def rows(self, trial: Trial) -> Iterator[tuple[Signal, int, int, str]]:
        """Each signal: keys that the canary has, about how many it takes, and the rates."""
        judge = self.judge(len(trial.seen))
        for signal in self.signals:
            evidence = trial.evidence.get(signal, Evidence())
            keys = evidence.new.keys
            yield signal, keys, keys + judge.trials_left(evidence), rates_text(signal, evidence)

    def text(self, trial: Trial) -> str:
        """How far the step is, for people."""
        if not trial.began:
            return "nothing is counted yet"
        texts = [
            f"{keys:,} of about {needed:,} trials: {rates}"
            for _, keys, needed, rates in self.rows(trial)
        ]
        minutes = f"{min(trial.minutes, self.spec.minutes):.0f} of {self.spec.minutes} minutes"
        heavy = f"one key has {trial.heavy_share:.0%} of the canary's requests"
        return "; ".join([*texts, minutes, *([heavy] if trial.heavy_share else [])])


def _names(shares: Mapping[Role, CanaryShare], side: Literal["revision", "former"]) -> str:
    """The revisions of one side as routers name them: of all pools."""
    return ".".join(getattr(shares[role], side) for role in sorted(shares))


def _flat(counts: CanaryCounts) -> list[int]:
    return [*astuple(counts.new), *astuple(counts.old)]


def _added(now: Sequence[int], before: Sequence[int] | None) -> list[int]:
    """What a router has counted since; all of it where it began anew."""
    if before is None or len(before) != len(now) or any(map(operator.lt, now, before)):
        return [*now]
    return [*map(operator.sub, now, before)]


def _counts(signal: Signal, counts: TrialCounts) -> Counts:
    """The counts of one signal; `late` answers are a part of the `timed` ones."""
    if signal == "errors":
        return Counts(counts.trials, min(counts.failed, counts.trials), counts.trials)
    return Counts(counts.timed, min(counts.late, counts.timed), counts.timed)


def step_judge(spec: InferenceServiceSpec) -> StepJudge | None:
    """What judges the canaries of a spec; None: it has none, or a person does."""
    canary = spec.rollout.canary if spec.rollout else None
    if canary is None or not canary.is_judged:
        return None
    return StepJudge(canary, promises_first_token(spec))


def promises_first_token(spec: InferenceServiceSpec) -> bool:
    """Whether spec.slo has the latency that routers judge."""
    return spec.slo is not None and spec.slo.ttft_milliseconds is not None


def rates_text(signal: Signal, evidence: Evidence) -> str:
    """The rates of both revisions, for people."""
    new, former = (f"{100 * side.rate:.1f} %" for side in (evidence.new, evidence.former))
    return f"{SIGNALS[signal]} {new} against {former}"
