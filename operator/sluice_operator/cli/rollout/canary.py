"""What `sluice rollout promote` and `sluice rollout abort` decide about a canary.

Pure. The decision is an annotation of the revision, so the spec stays as its user, or a GitOps
tool, wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.conditions.reasons import CANARY_AT_STEP
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.canary_state import ENDED, CanaryState
from sluice_operator.service.revisions.revision import Revision, revisions_of
from sluice_operator.service.rollout.canary import Canary, canary_of

NOT_OBSERVED: Final = "the operator has not looked at the present spec yet; try again"
NOT_CARRIED_OUT: Final = "the operator has not carried out the last decision yet; try again"


class CanaryNow(NamedTuple):
    """The canary of the newest revision, before a decision about it."""

    service: Manifest
    revision: Revision

    @property
    def state(self) -> CanaryState:
        """How far it is, once the last decision is carried out."""
        return self.revision.canary

    def canary(self) -> Canary | None:
        """The canary with all its steps; None: its spec has none any more, nor has it ended.

        Raises:
            NoCanaryError: this release of the command cannot read its spec.
        """
        try:
            spec = parse(InferenceServiceSpec, self.revision.spec, "spec")
        except InvalidSpecError as error:
            raise NoCanaryError(f"its spec cannot be read: {error}") from None
        return canary_of(spec, self.state)


Decide = Callable[[CanaryNow], tuple[CanaryState, str]]
"""The next state of a canary, and what that means, for people; raises `NoCanaryError`."""


class NoCanaryError(OperatorError):
    """There is nothing to decide; `str()` says why."""


def decision(
    service: Manifest, revisions: tuple[Manifest, ...], decide: Decide
) -> tuple[str, str, str]:
    """The name of the present revision of a service, the annotation with the decision about its
    canary, and what that means, for people. `revisions`: read before the service.

    Raises:
        NoCanaryError: it has no canary, or this cannot be decided now.
    """
    if (service.get("status") or {}).get("observedGeneration") != service["metadata"]["generation"]:
        raise NoCanaryError(NOT_OBSERVED)
    revision = next(revisions_of(revisions).newest_first, None)
    if revision is None or not (_has_canary(revision) or revision.canary.verdict in ENDED):
        raise NoCanaryError("spec.rollout.canary is not set")
    if not _is_being_rolled_out(revision):
        raise NoCanaryError("no new revision is being rolled out")
    if revision.canary.verdict == "promoted":
        raise NoCanaryError("the canary is promoted; to go back: sluice rollout undo")
    state, text = decide(CanaryNow(service, revision))
    if state.verdict != "aborted" and revision.canary != revision.state.canary:
        raise NoCanaryError(NOT_CARRIED_OUT)
    number, seen = revision.canary.decision + 1, revision.state.canary.place
    state = CanaryState(state.step, state.verdict, number, seen=seen)
    return revision.name, json.dumps(state.to_json_dict(), separators=(",", ":")), text


def _has_canary(revision: Revision) -> bool:
    return (revision.spec.get("rollout") or {}).get("canary") is not None


def _is_being_rolled_out(revision: Revision) -> bool:
    """Whether other engines than those of this revision were complete last."""
    stable = revision.state.stable
    return stable.keys() == revision.engines.keys() and stable != revision.engines


def next_step(now: CanaryNow) -> tuple[CanaryState, str]:
    """The next step, or all requests after the last one; from the beginning once it has ended.

    Raises:
        NoCanaryError: the engines of the present step are not ready.
    """
    canary = now.canary() if _has_canary(now.revision) else None
    if canary is None:
        return all_requests(now)
    steps, state = canary.spec.steps, canary.state
    if state.verdict in ENDED:
        return CanaryState(), f"tried again: step 1 of {len(steps)}, {steps[0]} % of requests"
    plan = (now.service.get("status") or {}).get("rollout") or {}
    is_below = state.verdict == "held" and state.reached <= state.step
    if plan.get("reason") not in CANARY_AT_STEP or is_below:
        text = f"step {state.step + 1} is not reached, and --full does not wait for it"
        raise NoCanaryError(f"{text}: {plan.get('message', 'there is no status')}")
    state = state.next_step(len(steps))
    if state.verdict is not None:
        return all_requests(now)
    step = state.step
    return state, f"step {step + 1} of {len(steps)}, {steps[step]} % of requests"


def all_requests(now: CanaryNow) -> tuple[CanaryState, str]:
    """All requests, whatever steps are left."""
    return replace(now.state, verdict="promoted"), "promoted to all requests"


def no_requests(now: CanaryNow) -> tuple[CanaryState, str]:
    """No requests for the new engines, which end.

    Raises:
        NoCanaryError: it has ended.
    """
    if now.state.verdict in ENDED:
        raise NoCanaryError("the canary has ended already")
    return replace(now.state, verdict="aborted"), "all requests go to the former revision"
