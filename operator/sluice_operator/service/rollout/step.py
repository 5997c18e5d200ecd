"""One step of a canary that the operator judges: what routers counted and engines did since it
began, and the verdict.

Pure. All of it is in the revision's state, so an operator that is killed loses nothing that was
recorded, and a verdict is recorded together with its counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AwareDatetime,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from sluice_contract.cluster.labels import CanaryShare, Role

from sluice_operator.api.scaling import CanarySpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.engine_ends import PodSeen, often_ended, pods_seen
from sluice_operator.service.rollout.judge import (
    Comparison,
    Evidence,
    Judge,
    keys_needed,
)
from sluice_operator.service.rollout.rates import NOT_COMPARED, compared_speed, has_no_more_requests
from sluice_operator.service.rollout.router_counts import (
    SIGNALS,
    RouterAnswers,
    Signal,
    added_since,
    counts_of,
    flat,
    percent_of,
    sides_of,
)
from sluice_operator.service.rollout.shortfall import LOW_PART, MISSING_PART, Shortfall

LEVEL: Final = 0.01
"""Probability of a wrong verdict about a canary, of all signals and steps together."""
MAX_HALVINGS: Final = 50
BASE_RATE: Final = 0.001
"""Share of bad keys that previews assume."""
RECORD_SECONDS: Final = 60.0
"""Least time between two records of counts: routers count minutes, and each record is a write. A
verdict is recorded at once."""
GAP_SECONDS: Final = 90.0
"""Longest time from a record to the next look that counts for a step. After a longer one the canary
may have had no requests, or no operator, meanwhile."""
MAX_EPOCHS: Final = 2
"""Epochs of routers in the evidence of a step, for each router, at most: a router that restarts
counts the same keys again, so every epoch makes a verdict take more keys. Of the routers as many
count as the step had at most, so fewer replicas drop nothing."""
WARM_MINUTES: Final = 5.0
"""Time after which caches of prefixes of new engines count as warm: reports do not show how full
they are."""
STALLED: Final = 10
"""A step without a verdict is stalled after so many times its `minutes`."""


@dataclass(frozen=True)
class StepEvidence:
    """What was learnt in a step. The state has it as JSON, without what is as at the beginning."""

    __pydantic_config__: ClassVar = ConfigDict(alias_generator=to_camel, allow_inf_nan=False)

    looked: AwareDatetime | None = None
    """Time of the last record; None before the first look."""
    seconds: NonNegativeFloat = 0.0
    """Time at the step's share between looks at most `GAP_SECONDS` apart."""
    answers: RouterAnswers | None = None
    """Routers that took part in the last record; None before the first look."""
    routers: Annotated[frozenset[str], PlainSerializer(sorted)] = frozenset()
    """Epochs of the routers whose counts are in `evidence`."""
    most_asked: NonNegativeInt = 0
    """Largest number of routers asked in a look."""
    percent: NonNegativeInt = 0
    """Share of the keys, in percent, that `evidence` is of; 0 before the first look."""
    begun_anew: NonNegativeInt = 0
    """How often evidence was dropped that was a test: as too many routers had counted in it, or, if
    a verdict was near, as the share has changed."""
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Counts of each router as they were recorded last, by epoch, in the order of `flat`."""
    evidence: Mapping[Signal, Evidence] = field(default_factory=dict)
    share_since: AwareDatetime | None = None
    """Time since which the share was that without a gap; None before the first look at it."""
    shortfall: Shortfall = field(default_factory=Shortfall)
    """Evidence that the canary answers too few of the keys."""
    pods: Mapping[str, PodSeen] | None = None
    """Engines of the new revision, by pod; None: no engine was looked at yet."""
    heavy_share: float = 0.0
    """Share of one key in the canary's requests, if large."""
    key_share: float = 1.0
    """Smallest share of the keys that a router counts."""
    speed_compared: bool = False
    """Whether speeds of both revisions were compared in the step."""
    recurs: bool = False
    """Whether any key in `evidence` may have been counted by several routers."""

    @classmethod
    def of(cls, learnt: Mapping[str, Any]) -> StepEvidence:
        """What is noted in a state; nothing where it is broken."""
        try:
            return _EVIDENCE.validate_python(learnt)
        except ValidationError:
            return cls()

    def to_json_dict(self) -> Manifest:
        """The evidence as the state has it: equal to what JSON reads back."""
        written: Manifest = _EVIDENCE.dump_python(
            self, mode="json", by_alias=True, exclude_defaults=True
        )
        return written

    @property
    def minutes(self) -> float:
        """Minutes of the step."""
        return self.seconds / 60

    def with_look(
        self,
        look: Look,
        shares: Mapping[Role, CanaryShare],
        signals: Iterable[Signal],
        *,
        are_missing: bool = False,
    ) -> StepEvidence:
        """The evidence with another look, while some engines `are_missing` or none. The first one
        of a step, and one after a gap, is a beginning: what routers counted before is not the
        step's. A router that is new since then has counted in this step alone; one that did not
        answer brings both sides' counts with its next answer."""
        counts = counts_of(look, shares)
        seen = {epoch: flat(each) for epoch, each in counts.items()}
        answers = RouterAnswers(look.asked, look.answered, len(counts))
        # Where all have answered, an epoch without an answer has ended.
        most_asked = max(self.most_asked, look.asked)
        are_all = 0 < look.asked <= len(seen) or len(self.seen) > MAX_EPOCHS * max(1, most_asked)
        looked = look.time.astimezone(UTC).replace(microsecond=0)
        after = replace(
            self,
            looked=looked,
            share_since=self.share_since or looked,
            answers=answers,
            most_asked=most_asked,
            seen=seen if are_all else {**self.seen, **seen},
            heavy_share=max((c.heavy_share or 0.0 for c in counts.values()), default=0.0),
            key_share=min((c.key_share for c in counts.values()), default=1.0),
            recurs=self.recurs or any(c.recurs for c in counts.values()),
        )
        passed = self.seconds_until(look)
        if passed is None or not 0 <= passed <= GAP_SECONDS:
            return replace(after, shortfall=Shortfall(), share_since=looked)
        after = replace(after, seconds=self.seconds + passed)
        added = {epoch: added_since(now, self.seen.get(epoch)) for epoch, now in seen.items()}
        if not added:
            return after
        routers = self.routers | {epoch for epoch, numbers in added.items() if any(numbers)}
        if len(routers) > MAX_EPOCHS * most_asked:
            after = replace(after, begun_anew=self.begun_anew + 1)
            return after.without_evidence()
        total = [*map(sum, zip(*added.values(), strict=True))]
        evidence = {
            signal: self.evidence.get(signal, Evidence()).after(*sides_of(signal, total))
            for signal in signals
        }
        after = replace(after, routers=routers, evidence={**self.evidence, **evidence})
        minutes = max(numbers[-1] for numbers in added.values())
        sides = sides_of("errors", total)
        part = MISSING_PART if are_missing else LOW_PART
        if after.is_cold:
            part = 0.0
        shortfall = self.shortfall.after(*sides, minutes, self.percent, after.judges, part)
        return replace(after, shortfall=shortfall)

    def without_evidence(self) -> StepEvidence:
        """The step with nothing that counts for a verdict but its time."""
        return replace(self, routers=frozenset(), evidence={}, shortfall=Shortfall())

    @property
    def is_cold(self) -> bool:
        """Whether caches of engines that are new at this share may be cold."""
        if self.looked is None or self.share_since is None:
            return True
        return self.looked - self.share_since < timedelta(minutes=WARM_MINUTES)

    @property
    def judges(self) -> int:
        """How many routers count apart, at least 1. Keys that do not recur are each counted by one,
        so several count as one."""
        return max(1, len(self.routers)) if self.recurs else 1

    def seconds_until(self, look: Look) -> float | None:
        """Seconds from the last record to a look, negative if clocks differ; None: nothing is
        recorded."""
        if self.looked is None:
            return None
        return (look.time - self.looked).total_seconds()


_EVIDENCE: Final = TypeAdapter(StepEvidence)


@dataclass(frozen=True)
class CanaryJudge:
    """Judges the steps of one spec."""

    spec: CanarySpec
    has_slo: bool

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What trials are judged by."""
        errors: tuple[Signal, ...] = ("errors",) if self.spec.judge.errors else ()
        return (*errors, "slo") if self.spec.judge.slo and self.has_slo else errors

    def signal_judge(self, step: StepEvidence | None = None) -> Judge:
        """The judge of one signal in one step. Each time that evidence was dropped halves the
        level: another test is another chance of a wrong verdict."""
        step = step or StepEvidence()
        parts = max(1, len(self.signals)) * len(self.spec.steps)
        level = LEVEL / parts / 2 ** min(step.begun_anew, MAX_HALVINGS)
        return Judge(self.spec.judge.margin_points / 1000, level, step.judges)

    def keys_needed(self, percent: int, routers: int) -> int:
        """About how many keys of the canary the verdict "same" takes where `BASE_RATE` of them are
        bad on both sides. Each of so many routers sees all of them."""
        judge = self.signal_judge()
        return routers * keys_needed(BASE_RATE, judge.margin, judge.level, percent / 100)

    def after(
        self,
        state: CanaryState,
        shares: Mapping[Role, CanaryShare],
        pods: Sequence[Manifest],
        looks: Sequence[Look],
        *,
        is_at_step: bool = True,
        may_pass: bool = True,
        are_missing: bool = False,
    ) -> CanaryState:
        """The state with what is seen now: another step or a verdict, if it follows. A verdict
        stays. `pods`: engines of the new revisions; `looks`: the last answers of the routers, none
        while the revisions have no requests. `is_at_step`: the share is the step's; at another one
        no time counts, and only "worse" can follow. `may_pass`: the step may end, as the service
        is not paused. `are_missing`: fewer engines are ready than the
        share takes."""
        if state.verdict is not None:
            return state
        step = StepEvidence.of(state.learnt)
        if self.spec.judge.errors:
            step = replace(step, pods=pods_seen(step.pods, pods))
            if why := often_ended(step.pods or {}, pods):
                return self._worse(state, step, why)
        if not looks:
            return replace(state, learnt=step.to_json_dict())
        passed = step.seconds_until(looks[-1])
        is_due = passed is None or not 0 <= passed < RECORD_SECONDS
        before = self._at_percent(step, percent_of(shares))
        is_slo = not are_missing and self._compares_latencies(before, shares, looks)
        signals = (signal for signal in self.signals if signal != "slo" or is_slo)
        now = before.with_look(looks[-1], shares, signals, are_missing=are_missing)
        if not is_at_step or now.percent != step.percent:
            now = replace(now, seconds=step.seconds)
        speed = compared_speed(looks, shares) if self.spec.judge.slo else NOT_COMPARED
        now = replace(now, speed_compared=now.speed_compared or speed.is_compared)
        if why := self._worse_rates(now) or speed.slower:
            return self._worse(state, now, why)
        if not is_due:
            return replace(state, learnt=step.to_json_dict())
        if self.spec.judge.errors and (why := now.shortfall.text(now.percent, now.judges)):
            return self._worse(state, now, why)
        if may_pass and now.seconds > step.seconds and self._is_same(now):
            return self._next(state, now)
        return replace(state, learnt=now.to_json_dict())

    def _worse_rates(self, step: StepEvidence) -> str:
        """The rates of a signal that is worse; empty: none is."""
        worse = (signal for signal, verdict in self.verdicts(step).items() if verdict == "worse")
        return next((rates_text(signal, step.evidence[signal]) for signal in worse), "")

    def _is_same(self, step: StepEvidence) -> bool:
        """Whether a step is over: each signal that could be compared is the same, at least one.
        Where the speed alone is judged, a person ends it."""
        if step.minutes < self.spec.minutes or self._is_short(step):
            return False
        verdicts = self.verdicts(step).values()
        return bool(verdicts) and all(verdict == "same" for verdict in verdicts)

    def _is_short(self, step: StepEvidence) -> bool:
        """Whether the canary may answer too few of its keys to pass a step."""
        return self.spec.judge.errors and step.shortfall.delays(step.judges)

    def _next(self, state: CanaryState, step: StepEvidence) -> CanaryState:
        """The state after a step that is over."""
        skipped = [SIGNALS[signal] for signal in self.signals if signal not in self.verdicts(step)]
        why = "; ".join([self.text(step), *(f"{name} were not compared" for name in skipped)])
        state = replace(state, learnt=step.to_json_dict())
        return replace(state.next_step(len(self.spec.steps)), why=why)

    def verdicts(self, step: StepEvidence) -> dict[Signal, Comparison]:
        """The verdict of each signal that has evidence."""
        judge = self.signal_judge(step)
        return {
            signal: judge.verdict(step.evidence[signal])
            for signal in self.signals
            if signal in step.evidence and step.evidence[signal].new.trials
        }

    def _at_percent(self, step: StepEvidence, percent: int) -> StepEvidence:
        """The step at a share. Another share than before begins the evidence anew, as routers count
        anew. That halves the level only if a verdict was near, so scaling alone does not use it
        up; before any time of the step only "worse" could follow."""
        if percent == step.percent:
            return step
        judge = self.signal_judge(step)
        begun_anew = step.begun_anew + any(
            judge.is_near(each, only_worse=not step.seconds) for each in step.evidence.values()
        )
        step = replace(step, percent=percent, begun_anew=begun_anew, share_since=None)
        return step.without_evidence()

    def _compares_latencies(
        self, step: StepEvidence, shares: Mapping[Role, CanaryShare], looks: Sequence[Look]
    ) -> bool:
        """Whether a look counts for late answers: only while the canary's engines are warm, and get
        no more requests."""
        return step.minutes >= WARM_MINUTES and has_no_more_requests(looks, shares)

    def _worse(self, state: CanaryState, step: StepEvidence, why: str) -> CanaryState:
        ends = self.spec.on_worse == "Halt"
        verdict: Literal["worse", "held"] = "worse" if ends else "held"
        return replace(state, verdict=verdict, why=why, learnt=step.to_json_dict())

    def is_stalled(self, step: StepEvidence) -> bool:
        """Whether the step should have had its verdict long ago."""
        return step.minutes >= STALLED * self.spec.minutes

    def rows(self, step: StepEvidence) -> Iterator[tuple[Signal, int, int, str]]:
        """Each signal: keys that the canary has, about how many it takes, which are more until it
        is the same, and the rates."""
        judge, verdicts = self.signal_judge(step), self.verdicts(step)
        for signal in self.signals:
            evidence = step.evidence.get(signal, Evidence())
            keys = evidence.new.keys
            is_same = verdicts.get(signal) == "same"
            needed = keys if is_same else keys + max(1, judge.keys_left(evidence))
            yield signal, keys, needed, rates_text(signal, evidence)

    def text(self, step: StepEvidence) -> str:
        """How far the step is, for people."""
        if step.answers is None:
            return "nothing is counted yet"
        texts = [
            f"{keys:,} of about {needed:,} keys: {rates}"
            for _, keys, needed, rates in self.rows(step)
        ]
        if self.spec.judge.slo and not step.speed_compared:
            texts.append("speed was not compared")
        heavy, keys, anew = step.heavy_share, step.key_share, step.begun_anew
        notes = (
            step.answers.text,
            heavy and f"one key has {heavy:.0%} of the canary's requests",
            keys < 1 and f"routers count {keys:.0%} of the keys",
            self._is_short(step) and "the new revision answered less than half of its share",
            anew and f"begun anew {anew} times, as routers or the share changed",
        )
        return "; ".join([*texts, self.minutes_text(step), *(str(n) for n in notes if n)])

    def minutes_text(self, step: StepEvidence) -> str:
        """How long the step has lasted, for people."""
        return f"{step.minutes:.0f} of at least {self.spec.minutes} minutes"


def step_judge(spec: InferenceServiceSpec) -> CanaryJudge | None:
    """What judges the canaries of a spec; None: it has none, or a person does."""
    canary = spec.rollout.canary if spec.rollout else None
    if canary is None or not canary.is_judged:
        return None
    return CanaryJudge(canary, promises_first_token(spec))


def promises_first_token(spec: InferenceServiceSpec) -> bool:
    """Whether spec.slo has the latency that routers judge."""
    return spec.slo is not None and spec.slo.ttft_milliseconds is not None


def rates_text(signal: Signal, evidence: Evidence) -> str:
    """The rates of both revisions, for people."""
    if not evidence.new.keys and not evidence.former.keys:
        return f"{SIGNALS[signal]}: no requests yet"
    new, former = (f"{100 * side.rate:.1f} %" for side in (evidence.new, evidence.former))
    return f"{SIGNALS[signal]} {new} against {former}"
