"""What `sluice rollout promote` and `sluice rollout abort` decide about a canary.

Pure. The decision is state of the revision, so the spec stays as its user, or a GitOps tool, wrote
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice_operator.api.findings import parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.revision import CanaryState, Revision, revisions_of

Decide = Callable[[CanaryState, list[int]], tuple[CanaryState, str]]
"""The next state of a canary with these steps, and what that means."""


class NoCanaryError(OperatorError):
    """There is nothing to decide; `str()` says why."""


def decided(
    service: Manifest, children: tuple[Manifest, ...], decide: Decide
) -> tuple[Revision, str]:
    """The present revision of a service with its new state, and what that means, as text.

    Raises:
        NoCanaryError: it has no canary, or that has ended.
    """
    spec = parse(InferenceServiceSpec, service["spec"], "spec")
    if spec.rollout is None or spec.rollout.canary is None:
        raise NoCanaryError("spec.rollout.canary is not set")
    if (service.get("status") or {}).get("observedGeneration") != service["metadata"]["generation"]:
        raise NoCanaryError("the operator has not looked at the present spec yet; try again")
    revision = next(revisions_of(children).newest_first, None)
    if revision is None or not _replaces(revision):
        raise NoCanaryError("no new revision is being rolled out")
    state, text = decide(revision.state.canary, spec.rollout.canary.steps)
    return replace(revision, state=replace(revision.state, canary=state)), text


def _replaces(revision: Revision) -> bool:
    """Whether other engines than those of this revision were complete last."""
    stable = revision.state.stable
    engines = {role.value: pool.engines for role, pool in revision.pools.items()}
    return stable.keys() == engines.keys() and stable != engines


def promoted(state: CanaryState, steps: list[int]) -> tuple[CanaryState, str]:
    """The next step, or all requests after the last one; from the beginning once it has ended."""
    _refuse_promoted(state)
    after = state.promoted(len(steps))
    if after.verdict is not None:
        return promoted_to_all(state, steps)
    text = f"step {after.step + 1} of {len(steps)}, {steps[after.step]} % of requests"
    return after, text if state.verdict is None else f"tried again: {text}"


def promoted_to_all(state: CanaryState, steps: list[int]) -> tuple[CanaryState, str]:
    """All requests, whatever steps are left."""
    _refuse_promoted(state)
    return replace(state, verdict="promoted"), "promoted to all requests"


def aborted(state: CanaryState, steps: list[int]) -> tuple[CanaryState, str]:
    """None: the new engines end."""
    _refuse_promoted(state)
    if state.verdict is not None:
        raise NoCanaryError("the canary has ended already")
    return replace(state, verdict="aborted"), "all requests go to the former revision"


def _refuse_promoted(state: CanaryState) -> None:
    if state.verdict == "promoted":
        raise NoCanaryError("the canary is promoted; to go back: sluice rollout undo")
