"""One step of a canary that the operator judges: what routers counted and engines did since it
began, and the verdict.

Pure. All of it is in the revision's state, so an operator that is killed loses nothing that was
recorded, and a verdict is recorded together with its counts.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts

from sluice_operator.api.scaling import CanarySpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.engine_ends import PodSeen, often_ended, pods_seen
from sluice_operator.service.rollout.judge import Counts, Evidence, Judge, Verdict, trials_needed
from sluice_operator.service.rollout.rates import has_no_more_requests, is_speed_compared, slower

Signal = Literal["errors", "slo"]
SIGNALS: Final[Mapping[Signal, str]] = {"errors": "errors", "slo": "late answers"}
"""What is judged, for people."""
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
SILENT_SECONDS: Final = 180.0
"""Time of counts after which a revision without any answer is worse: its first answers take
longer."""
SILENT_LEVEL: Final = LEVEL / 100
"""Probability that none of the keys is the canary's by chance."""
STALLED: Final = 10
"""A step without a verdict is stalled after so many times its `minutes`."""


class RouterAnswers(NamedTuple):
    """How many routers took part in a look."""

    asked: int = 0
    answered: int = 0
    counted: int = 0
    """Routers whose answer had counts of these revisions."""

    @property
    def text(self) -> str:
        """Why counts are missing, for people; empty: all routers count."""
        if not self.asked:
            return "no router runs"
        if self.answered < self.asked:
            return f"{self.answered} of {self.asked} routers answer"
        silent = self.asked - self.counted
        return f"{silent} of {self.asked} routers do not count canaries" if silent else ""


@dataclass(frozen=True)
class StepEvidence:
    """What was learnt in a step."""

    looked: str = ""
    """UTC time of the last record; empty before the first look."""
    seconds: float = 0.0
    """Time of the step between looks at most `GAP_SECONDS` apart."""
    counted_seconds: float = 0.0
    """Part of `seconds` in which routers have counted without a break: since the last gap, or since
    all of them began anew."""
    answers: RouterAnswers | None = None
    """Routers that took part in the last record; None before the first look."""
    routers: frozenset[str] = frozenset()
    """Epochs of the routers whose counts are in `evidence`."""
    most_asked: int = 0
    """Largest number of routers asked in a look."""
    percent: int = 0
    """Share of the keys, in percent, that `evidence` is of; 0 before the first look."""
    begun_anew: int = 0
    """How often evidence was dropped that was a test: as too many routers had counted in it, or, if
    a verdict was near, as the share has changed."""
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Counts of each router as they were recorded last, by epoch, in the order of `_flat`."""
    evidence: Mapping[Signal, Evidence] = field(default_factory=dict)
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
            pods = learnt.get("pods")
            answers = learnt.get("answers")
            if looked := str(learnt.get("looked", "")):
                _ = datetime.fromisoformat(looked)
            return cls(
                looked,
                float(learnt.get("seconds", 0.0)),
                float(learnt.get("countedSeconds", 0.0)),
                None if answers is None else RouterAnswers(*map(int, answers)),
                frozenset(map(str, learnt.get("routers", ()))),
                int(learnt.get("mostAsked", 0)),
                int(learnt.get("percent", 0)),
                int(learnt.get("begunAnew", 0)),
                {str(epoch): [*map(int, seen)] for epoch, seen in learnt.get("seen", {}).items()},
                {name: Evidence.of(each) for name, each in learnt.get("evidence", {}).items()},
                None if pods is None else {name: PodSeen(*seen) for name, seen in pods.items()},
                float(learnt.get("heavyShare", 0.0)),
                float(learnt.get("keyShare", 1.0)),
                bool(learnt.get("speedCompared", False)),
                bool(learnt.get("recurs", False)),
            )
        except (TypeError, ValueError, KeyError, AttributeError, AssertionError):
            return cls()

    def to_json_dict(self) -> Manifest:
        """The evidence as the state has it: equal to what JSON reads back."""
        pods = None if self.pods is None else {name: [*pod] for name, pod in self.pods.items()}
        written: Manifest = {
            "looked": self.looked,
            "seconds": self.seconds,
            "countedSeconds": self.counted_seconds,
            "answers": self.answers,
            "routers": sorted(self.routers),
            "mostAsked": self.most_asked,
            "percent": self.percent,
            "begunAnew": self.begun_anew,
            "seen": {epoch: [*seen] for epoch, seen in self.seen.items()},
            "evidence": {name: asdict(each) for name, each in self.evidence.items()},
            "heavyShare": self.heavy_share,
            "keyShare": self.key_share if self.key_share < 1 else None,
            "speedCompared": self.speed_compared,
            "recurs": self.recurs,
        }
        kept = {key: value for key, value in written.items() if value}
        noted: Manifest = json.loads(json.dumps(kept if pods is None else kept | {"pods": pods}))
        return noted

    @property
    def minutes(self) -> float:
        """Minutes of the step."""
        return self.seconds / 60

    def with_look(
        self, look: Look, shares: Mapping[Role, CanaryShare], signals: Iterable[Signal]
    ) -> StepEvidence:
        """The evidence with another look. The first one of a step, and one after a gap, is a
        beginning: what routers counted before is not the step's. A router that is new since then
        has counted in this step alone; one that did not answer brings both sides' counts with its
        next answer."""
        counts = counts_of(look, shares)
        seen = {epoch: _flat(each) for epoch, each in counts.items()}
        answers = RouterAnswers(look.asked, look.answered, len(counts))
        # Where all have answered, an epoch without an answer has ended.
        most_asked = max(self.most_asked, look.asked)
        are_all = 0 < look.asked <= len(seen) or len(self.seen) > MAX_EPOCHS * max(1, most_asked)
        after = replace(
            self,
            looked=look.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            answers=answers,
            most_asked=most_asked,
            seen=seen if are_all else {**self.seen, **seen},
            heavy_share=max((c.heavy_share or 0.0 for c in counts.values()), default=0.0),
            key_share=min((c.key_share for c in counts.values()), default=1.0),
            recurs=self.recurs or any(c.recurs for c in counts.values()),
        )
        passed = self.seconds_until(look)
        if passed is None or passed > GAP_SECONDS:
            return replace(after, counted_seconds=0.0)
        goes_on = not seen or not self.seen.keys().isdisjoint(seen)
        counted_seconds = self.counted_seconds + passed if goes_on else 0.0
        after = replace(after, seconds=self.seconds + passed, counted_seconds=counted_seconds)
        added = {epoch: _added(now, self.seen.get(epoch)) for epoch, now in seen.items()}
        if not added:
            return after
        routers = self.routers | {epoch for epoch, numbers in added.items() if any(numbers)}
        if len(routers) > MAX_EPOCHS * most_asked:
            begun_anew = self.begun_anew + 1
            return replace(after, routers=frozenset(), evidence={}, begun_anew=begun_anew)
        total = [*map(sum, zip(*added.values(), strict=True))]
        evidence = {
            signal: self.evidence.get(signal, Evidence()).after(*_counts(signal, total))
            for signal in signals
        }
        return replace(after, routers=routers, evidence={**self.evidence, **evidence})

    def seconds_until(self, look: Look) -> float | None:
        """Seconds from the last record to a look; None: nothing is recorded."""
        if not self.looked:
            return None
        return max(0.0, (look.time - datetime.fromisoformat(self.looked)).total_seconds())


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
        level: another test is another chance of a wrong verdict. Keys that do not recur are each
        counted by one router, so several count as one."""
        step = step or StepEvidence()
        parts = max(1, len(self.signals)) * len(self.spec.steps)
        level = LEVEL / parts / 2 ** min(step.begun_anew, MAX_HALVINGS)
        routers = max(1, len(step.routers)) if step.recurs else 1
        return Judge(self.spec.judge.margin_points / 1000, level, routers)

    def keys_needed(self, percent: int, routers: int) -> int:
        """About how many keys of the canary the verdict "same" takes where `BASE_RATE` of them are
        bad on both sides. Each of so many routers sees all of them."""
        judge = self.signal_judge()
        return routers * trials_needed(BASE_RATE, judge.margin, judge.level, percent / 100)

    def after(
        self,
        state: CanaryState,
        shares: Mapping[Role, CanaryShare],
        pods: Sequence[Manifest],
        looks: Sequence[Look],
        *,
        are_missing: bool = False,
    ) -> CanaryState:
        """The state with what is seen now: another step or a verdict, if it follows. A verdict
        stays. `pods`: engines of the new revisions; `looks`: the last answers of the routers, none
        until the step's engines are ready; `are_missing`: some of them are not ready now."""
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
        step = self._at_percent(step, percent_of(shares))
        is_slo = not are_missing and self._compares_latencies(step, shares, looks)
        signals = tuple(signal for signal in self.signals if signal != "slo" or is_slo)
        now = step.with_look(looks[-1], shares, signals)
        verdicts = self.verdicts(now)
        for signal in self.signals:
            if verdicts.get(signal) == "worse":
                return self._worse(state, now, rates_text(signal, now.evidence[signal]))
        if self.spec.judge.slo:
            if why := slower(looks, shares):
                return self._worse(state, now, why)
            is_compared = now.speed_compared or is_speed_compared(looks, shares)
            now = replace(now, speed_compared=is_compared)
        is_silent = self.spec.judge.errors and now.counted_seconds >= SILENT_SECONDS
        if is_silent and (why := silent(looks[-1], shares)):
            return self._worse(state, now, why)
        is_same = verdicts and all(verdict == "same" for verdict in verdicts.values())
        if is_same and now.minutes >= self.spec.minutes:
            others = [SIGNALS[signal] for signal in self.signals if signal not in verdicts]
            why = "; ".join([self.text(now), *(f"{name} were not compared" for name in others)])
            state = replace(state, learnt=now.to_json_dict())
            return replace(state.next_step(len(self.spec.steps)), why=why)
        is_due = passed is None or passed >= RECORD_SECONDS
        return replace(state, learnt=(now if is_due else step).to_json_dict())

    def verdicts(self, step: StepEvidence) -> dict[Signal, Verdict]:
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
        up."""
        if percent == step.percent:
            return step
        judge = self.signal_judge(step)
        begun_anew = step.begun_anew + any(map(judge.is_near, step.evidence.values()))
        return replace(
            step, percent=percent, routers=frozenset(), evidence={}, begun_anew=begun_anew
        )

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
        return bool(self.signals) and step.minutes >= STALLED * self.spec.minutes

    def rows(self, step: StepEvidence) -> Iterator[tuple[Signal, int, int, str]]:
        """Each signal: keys that the canary has, about how many it takes, which are more until it
        is the same, and the rates."""
        judge, verdicts = self.signal_judge(step), self.verdicts(step)
        for signal in self.signals:
            evidence = step.evidence.get(signal, Evidence())
            keys = evidence.new.keys
            is_same = verdicts.get(signal) == "same"
            needed = keys if is_same else keys + max(1, judge.trials_left(evidence))
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
            anew and f"begun anew {anew} times, as routers or the share changed",
        )
        return "; ".join([*texts, self.minutes_text(step), *(str(n) for n in notes if n)])

    def minutes_text(self, step: StepEvidence) -> str:
        """How long the step has lasted, for people."""
        return f"{step.minutes:.0f} of at least {self.spec.minutes} minutes"


def counts_of(look: Look, shares: Mapping[Role, CanaryShare]) -> Mapping[str, CanaryCounts]:
    """The counts of these revisions at this percent in a look, by the epoch of their router."""
    step = _names(shares, "revision"), _names(shares, "former"), percent_of(shares)
    return {c.epoch: c for c in look.counts if (c.revision, c.former, c.percent) == step}


def percent_of(shares: Mapping[Role, CanaryShare]) -> int:
    """Percent of the keys that routers give to the new revisions."""
    return min((share.percent for share in shares.values()), default=0)


def silent(look: Look, shares: Mapping[Role, CanaryShare]) -> str:
    """Text about a revision that answers nothing, as one whose queue is always full; empty while
    that may be chance. Keys of the router with most count, as others may have the same keys."""
    counts = counts_of(look, shares).values()
    answered = sum(each.new_counts.errors.trials for each in counts)
    keys = max((each.former_counts.errors.keys for each in counts), default=0)
    if answered or (1 - percent_of(shares) / 100) ** keys > SILENT_LEVEL:
        return ""
    return f"it answered no request, while {keys:,} chats of the former revision were answered"


def _names(shares: Mapping[Role, CanaryShare], side: Literal["revision", "former"]) -> str:
    """The revisions of one side as routers name them: of all pools."""
    return ".".join(getattr(shares[role], side) for role in sorted(shares))


def _flat(counts: CanaryCounts) -> list[int]:
    """Trials, bad ones and keys of each signal: of the new revision, then of the former."""
    sides = counts.new_counts, counts.former_counts
    signals = [signal for side in sides for signal in (side.errors, side.late)]
    return [number for each in signals for number in (each.trials, each.bad, each.keys)]


def _added(now: Sequence[int], before: Sequence[int] | None) -> list[int]:
    """What a router has counted since; all of it where it began anew. Nothing where another release
    of the operator has recorded other counts."""
    if before is None:
        return [*now]
    if len(before) != len(now):
        return [0] * len(now)
    if any(map(operator.lt, now, before)):
        return [*now]
    return [*map(operator.sub, now, before)]


def _counts(signal: Signal, total: Sequence[int]) -> tuple[Counts, Counts]:
    """The counts of one signal, of the new revision and of the former. Where a router has counted
    more bad keys than trials, each trial was bad."""
    first = 3 * [*SIGNALS].index(signal)
    trials, *parts = total[first : first + 3]
    former_trials, *former_parts = total[first + 6 : first + 9]
    return (
        Counts(trials, *(min(part, trials) for part in parts)),
        Counts(former_trials, *(min(part, former_trials) for part in former_parts)),
    )


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
    new, former = (f"{100 * side.rate:.1f} %" for side in (evidence.new, evidence.former))
    return f"{SIGNALS[signal]} {new} against {former}"
