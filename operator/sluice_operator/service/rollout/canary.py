"""Canaries: a new revision with a share of requests, in addition to all engines of the stable one,
and with so many engines that each gets no more requests than a stable one.

Pure. The next step, the roll-out to all and the end are decided by the operator's judge (`step`)
or by a person, and recorded in the revision before anything follows from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from sluice_contract.cluster.labels import CanaryShare, Role

from sluice_operator.api.scaling import CanarySpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.conditions.pods import first_failure, is_ready
from sluice_operator.conditions.reasons import (
    CANARY_ABORTED,
    CANARY_ASLEEP,
    CANARY_LATE,
    CANARY_STALLED,
    CANARY_STEP,
    CANARY_WAITS,
    CANARY_WORSE,
)
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine import revision_of
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import ENDED, CanaryState
from sluice_operator.service.rollout.pairing import NO_PAIR
from sluice_operator.service.rollout.router_counts import percent_of
from sluice_operator.service.rollout.step import (
    STALLED,
    CanaryJudge,
    StepEvidence,
    promises_first_token,
)
from sluice_operator.service.rollout.surge import (
    ROLLING_OUT,
    PoolState,
    Revisions,
    Rollout,
    RolloutRevision,
    Shares,
    desired_pair,
    keep_serving,
)

AGAIN: Final = (
    "all requests go to the former revision; apply the former spec to end this, or "
    "`sluice rollout promote NAME` to try the new one again"
)
LATE: Final = "its engines were not ready in time"
MAX_LOAD: Final = 1.5
"""Most requests of an engine of a reached step while others are missing, in those that it gets
beside all of them: with more the share falls. A pool that grows by up to a half keeps it."""
UNPAIRED: Final = "engines of the pools' new revisions cannot work together, so they get no request"


@dataclass(frozen=True)
class Canary:
    """The canary of a spec, and how far it is."""

    spec: CanarySpec
    state: CanaryState
    has_slo: bool = False
    """Whether spec.slo promises a latency."""

    @property
    def judge(self) -> CanaryJudge:
        """What judges the steps."""
        return CanaryJudge(self.spec, self.has_slo)

    def judged(
        self,
        plan: Rollout,
        engines: Iterable[Manifest],
        looks: tuple[Look, ...],
        may_pass: bool = True,
    ) -> Rollout:
        """A plan of `plan`, with what is learnt of the canary now. `engines`: pods of every
        revision; `looks`: answers of the routers; `may_pass`: its step may end well."""
        changed = {share.revision for share in plan.canary.values()} - {*plan.stable.values()}
        pods = tuple(pod for pod in engines if revision_of(pod) in changed)
        if plan.learnt:
            cause = first_failure(pods)
            why = f"{plan.learnt.why} ({cause})" if cause else plan.learnt.why
            return replace(plan, learnt=replace(plan.learnt, why=why))
        after = replace(self.state, reached=max(self.state.reached, self._reached(plan)))
        is_judged = self.spec.is_judged and self.state.verdict is None
        if is_judged:
            looks = looks if plan.is_judged else ()
            after = self.judge.after(
                after,
                plan.canary,
                pods,
                looks,
                is_at_step=self._is_at_step(percent_of(plan.canary)),
                may_pass=may_pass,
                are_missing=_are_missing(plan, pods),
            )
        learnt = None if after == self.state else after
        return replace(plan, learnt=learnt, is_judged=is_judged and plan.is_judged)

    def is_open(self, pools: tuple[PoolState, ...], stable: Revisions) -> bool:
        """Whether the desired revisions have not got all requests yet. Always false where nothing
        was complete before, or what was is gone."""
        return (
            _are_kept(pools, stable)
            and self.state.verdict != "promoted"
            and bool(_changed(pools, stable))
        )

    def with_shares(
        self, plan: Rollout, pools: tuple[PoolState, ...], stable: Revisions
    ) -> Rollout:
        """Another plan, with what routers must know: no other engine gets the requests of the
        stable ones while it leaves, and promoted ones get no more than their last step's share
        until they are complete. Where the stable engines make way one by one, requests follow the
        engines."""
        changed = _changed(pools, stable)
        if not _are_kept(pools, stable) or any(
            plan.shares[pool.role].get(stable[pool.role], 0) < pool.replicas for pool in changed
        ):
            return plan
        return replace(plan, canary=self._shares(pools, stable))

    def serves_though_ended(self, pools: tuple[PoolState, ...], stable: Revisions) -> bool:
        """Whether the desired revisions serve although they were aborted or found worse, as those
        before have gone."""
        return self._ended and bool(_changed(pools, stable)) and not _are_kept(pools, stable)

    def _shares(self, pools: tuple[PoolState, ...], stable: Revisions) -> dict[Role, CanaryShare]:
        """Share of the desired revisions, by pool; empty once only stable engines are there."""
        changed = _changed(pools, stable)
        is_over = not changed or self._ended
        others = (
            revision
            for pool in pools
            for revision in pool.all
            if revision.name != stable[pool.role]
        )
        if is_over and not any(map(_has_engines, others)):
            return {}
        percent = self._percent(changed) if changed else 0
        return {
            pool.role: CanaryShare(pool.desired.name, stable[pool.role], percent) for pool in pools
        }

    @property
    def _ended(self) -> bool:
        """Whether the desired revisions get no request any more."""
        return self.state.verdict in ENDED

    @property
    def _steps(self) -> list[int]:
        """The steps up to the present one; none once the canary has ended."""
        return [] if self._ended else self.spec.steps[: self.state.step + 1]

    def _percent(self, changed: list[PoolState]) -> int:
        """Percent of requests for the desired revisions: of the largest step whose engines are
        ready in every pool. A step that was reached before keeps its share, or half of it, while
        its engines get no more than `MAX_LOAD`: each other share begins the counts of routers anew,
        so there are few."""
        reached = max(self._steps[: self.state.reached], default=0)
        ready = [step for step in self._steps if _are_ready(changed, step)]
        kept = [p for p in (reached, reached // 2) if p and _are_ready(changed, p, MAX_LOAD)]
        return max((*ready, *kept), default=0)

    def _is_at_step(self, percent: int) -> bool:
        """Whether this is the share of the present step, or at least half of it, if engines are
        missing now."""
        step = max(self._steps, default=0)
        is_reached = 0 < len(self._steps) <= self.state.reached
        return percent == step or (is_reached and percent >= max(1, step // 2))

    def _reached(self, plan: Rollout) -> int:
        """How many steps the canary has reached, as the plan shows: all so far, or none."""
        percents = {share.percent for share in plan.canary.values()}
        return len(self._steps) if percents == {max(self._steps, default=0)} else 0

    def plan(self, pools: tuple[PoolState, ...], stable: Revisions) -> Rollout:
        """The plan for all pools while `is_open`; `stable`: the set that was complete last."""
        changed = _changed(pools, stable)
        shares: dict[Role, Shares] = {
            pool.role: {pool.desired.name: pool.replicas} for pool in pools
        }
        for pool in changed:
            count = engines_of_share(max(self._steps, default=0), pool.replicas)
            shares[pool.role] = {pool.desired.name: count, stable[pool.role]: pool.replicas}
        percent, canary = self._percent(changed), self._shares(pools, stable)
        engines = _ready_text(changed, shares, stable)
        keep_serving(pools, shares)
        evidence = StepEvidence.of(self.state.learnt)
        is_at_step = self._is_at_step(percent)
        reason = self._reason(evidence) if is_at_step else ROLLING_OUT
        text = f"{self._step(percent, evidence)}{engines}."
        if asleep := [pool.role for pool in changed if not pool.replicas]:
            reason, text = CANARY_ASLEEP, self._asleep(asleep)
        plan = Rollout(shares, stable, reason, text, canary, is_judged=percent > 0)
        if self.state.verdict == "aborted":
            text = f"The canary was aborted: {AGAIN}."
            return replace(plan, reason=CANARY_ABORTED, message=text, is_ended=True)
        if self.state.verdict == "worse":
            text = f"The canary is worse: {self.state.why}: {AGAIN}."
            return replace(plan, reason=CANARY_WORSE, message=text, is_ended=True)
        if self.state.verdict == "late":
            text = f"The canary has ended: {self.state.why}: {AGAIN}."
            return replace(plan, reason=CANARY_LATE, message=text, is_ended=True)
        if self.state.verdict == "held":
            text = f"The canary is worse, and stays: {self.state.why}. {plan.message}"
            return replace(plan, reason=CANARY_WORSE if percent else reason, message=text)
        if asleep:
            return plan
        is_begun = self.state.reached < len(self._steps)
        if (
            is_begun
            and self.spec.on_worse == "Halt"
            and any(pool.desired.is_late for pool in changed)
        ):
            return replace(plan, learnt=replace(self.state, verdict="late", why=LATE))
        if not desired_pair(pools):
            text = f"{plan.message} {UNPAIRED}."
            return replace(plan, reason=NO_PAIR, message=text, is_judged=False)
        return plan

    def _reason(self, evidence: StepEvidence) -> str:
        """Reason while the canary has the share of its step."""
        if not self.judge.signals:
            return CANARY_WAITS
        return CANARY_STALLED if self.judge.is_stalled(evidence) else CANARY_STEP

    def _asleep(self, roles: Iterable[Role]) -> str:
        """Why the step does not go on without engines, for people."""
        number, pools = max(1, len(self._steps)), " and ".join(roles)
        step = f"Step {number} of {len(self.spec.steps)} waits, as no engines of pool {pools}"
        return (
            f"{step} are asked for (`sluice rollout promote --full`: all at once, `abort`: none)."
        )

    def _step(self, percent: int, evidence: StepEvidence) -> str:
        """The step, the share, what was counted, and what comes next, for people."""
        steps, number = self.spec.steps, max(1, len(self._steps))
        after = f"{steps[number]} %" if number < len(steps) else "all"
        step = f"Step {number} of {len(steps)}, {percent} % of requests go to the new revision"
        if not self._is_at_step(percent):
            return f"{step} until its engines for {steps[number - 1]} % are ready"
        if percent < max(self._steps, default=0):
            step += f" while engines for {steps[number - 1]} % are missing"
        if self.spec.is_judged and self.state.verdict is None:
            if self.judge.is_stalled(evidence):
                step += f", without a verdict after {STALLED * self.spec.minutes} minutes"
            step += f", {self.judge.text(evidence)}"
        if not self.judge.signals:
            step += ", and a person decides"
        return f"{step} (`sluice rollout promote`: {after}, `abort`: none)"


def canary_of(asked: InferenceServiceSpec, recorded: CanaryState) -> Canary | None:
    """The canary of a revision, with all steps of the spec `asked`, and how far it is among them.
    One that has ended stays so without `canary` in the spec; None: there is none. One that was held
    has ended where the spec does not hold it."""
    spec = asked.rollout.canary if asked.rollout else None
    state = recorded
    if recorded.verdict == "held" and (spec is None or spec.on_worse != "Hold"):
        state = replace(recorded, verdict="worse")
    if spec is None and state.verdict not in ENDED:
        return None
    if spec is None:
        steps = [state.percent] if state.percent else CanarySpec().steps
    else:
        steps, state = state.steps_among(spec.steps), state.among(spec.steps)
    spec = (spec or CanarySpec()).model_copy(update={"steps": steps})
    return Canary(spec, state, promises_first_token(asked))


def _are_ready(pools: Iterable[PoolState], percent: int, load: float = 1.0) -> bool:
    """Whether the engines of a share are ready in every pool, at least one; or so many that none
    gets more than `load` times the requests."""
    return all(
        pool.desired.ready > 0 and load * pool.desired.ready >= _need(percent, pool.replicas)
        for pool in pools
    )


def engines_of_share(percent: int, replicas: int) -> int:
    """Engines that get a share of the requests beside `replicas` stable ones, which get the rest:
    so many that none gets more requests than a stable one."""
    return ceil(_need(percent, replicas))


def _need(percent: int, replicas: int) -> float:
    """`engines_of_share` before rounding."""
    return percent * replicas / (100 - percent)


def _are_missing(plan: Rollout, pods: Iterable[Manifest]) -> bool:
    """Whether fewer engines of a new revision are ready than its share takes."""
    ready = Counter(revision_of(pod) for pod in pods if is_ready(pod))
    return any(
        ready[share.revision] < engines_of_share(share.percent, plan.shares[role][share.former])
        for role, share in plan.canary.items()
        if share.revision != share.former
    )


def _changed(pools: tuple[PoolState, ...], stable: Revisions) -> list[PoolState]:
    """The pools in which the desired revision is not the stable one."""
    return [pool for pool in pools if pool.desired.name != stable.get(pool.role)]


def _are_kept(pools: tuple[PoolState, ...], stable: Revisions) -> bool:
    """Whether the stable revisions are there, each with a Deployment."""
    return all(_stable_of(pool, stable) for pool in pools)


def _stable_of(pool: PoolState, stable: Revisions) -> RolloutRevision | None:
    return next((revision for revision in pool.all if revision.name == stable.get(pool.role)), None)


def _has_engines(revision: RolloutRevision) -> bool:
    """Whether a revision has pods, or gets some."""
    return revision.is_tried and (revision.replicas > 0 or not revision.settled)


def _ready_text(changed: list[PoolState], shares: Mapping[Role, Shares], stable: Revisions) -> str:
    """How many engines of both revisions are ready in pools where some are not, for people."""
    texts = []
    for pool in changed:
        former = _stable_of(pool, stable)
        assert former is not None
        engines = shares[pool.role][pool.desired.name]
        if pool.desired.ready < engines or former.ready < pool.replicas:
            texts.append(
                f"pool {pool.role}: {pool.desired.ready} of {engines} engines of revision "
                f"{pool.desired.name} ready, {former.ready} of {pool.replicas} of {former.name}"
            )
    return f": {', '.join(texts)}" if texts else ""
