"""Builds conditions from checks, keeping the time of their last transition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sluice_operator.api.conditions import RECONCILING, STALLED, UPDATED, Check
from sluice_operator.apply.applier import ApplyOutcome, Refused
from sluice_operator.apply.executor import Report
from sluice_operator.apply.plan import Event, Plan
from sluice_operator.conditions import reasons
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest, controller
from sluice_operator.manifests.ownership import is_unowned, listed

ABNORMAL: Final = (RECONCILING, STALLED)
"""Conditions that are there only while they are True, as kstatus has them."""
_SEE: Final = re.compile(r"See (\w+)\.")
_POOL: Final = re.compile(r"^Pool \w+: ")


def conditions(
    before: Iterable[Mapping[str, Any]], checks: Mapping[str, Check], generation: int, now: datetime
) -> list[Manifest]:
    """The conditions that say what `checks` found, in their order. A condition whose status is
    the same as in `before` keeps its lastTransitionTime."""
    former = {condition["type"]: condition for condition in before}
    return [
        {
            "type": kind,
            "status": check.status,
            "observedGeneration": generation,
            "reason": check.reason,
            "message": check.message,
            "lastTransitionTime": _transition(former.get(kind), check, now),
        }
        for kind, check in _said_once(checks).items()
    ]


def _said_once(checks: Mapping[str, Check]) -> dict[str, Check]:
    """`checks` with one text for one finding: where Updated or Stalled has the words of another
    condition, that condition names it instead. Stalled and Reconciling keep theirs, because tools
    that go by kstatus show these."""
    shortened = dict(checks)
    for kind, check in checks.items():
        if kind in (UPDATED, *ABNORMAL) or not check.message:
            continue
        speakers = [name for name in (UPDATED, STALLED) if name in checks]
        if same := [name for name in speakers if _is_same(check.message, checks[name].message)]:
            shortened[kind] = replace(check, message=f"See {same[0]}.")
    return shortened


def _is_same(message: str, other: str) -> bool:
    """Whether two messages have the same words, and not about two pools."""
    (pool, words), (other_pool, other_words) = _finding(message), _finding(other)
    return words == other_words and (pool == other_pool or not (pool and other_pool))


def _finding(message: str) -> tuple[str, str]:
    """The pool in front of a message, else empty, and the words without their full stop."""
    pool = prefix[0] if (prefix := _POOL.match(message)) else ""
    return pool, message[len(pool) :].removesuffix(".")


def _transition(before: Mapping[str, Any] | None, check: Check, now: datetime) -> str:
    if before is not None and before["status"] == check.status:
        return str(before["lastTransitionTime"])
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def answering(ready: int, desired: int, what: str, updated: Check) -> Check:
    """The check of Ready for a group of `what`: one that answers is enough. `updated` says why none
    does. A group of desired size zero is ready."""
    if ready:
        count = f"As many {what} answer as are asked for."
        if ready < desired:
            count = f"{ready} of {desired} {what} answer."
        return Check("True", reasons.SERVING, count)
    if not desired:
        return Check("True", reasons.SCALED_TO_ZERO, f"No {what} are asked for.")
    return replace(updated, status="False")


def reconciling(moves: Check, *, is_done: bool) -> dict[str, Check]:
    """kstatus's Reconciling, which is there while tools should wait for the spec. `is_done`: the
    spec was carried out once. Later repairs, say of an engine on a drained node, are not waited
    for."""
    return {RECONCILING: moves} if moves.is_true and not is_done else {}


def progressing(moves: Check, updated: Check) -> Check:
    """The check of Progressing: False while something holds up the spec that need not pass, such as
    a missing Secret. `moves`: whether tools should wait, and why."""
    is_held_up = moves.reason == updated.reason and moves.reason not in reasons.HEALTHY
    return replace(moves, status="False") if is_held_up else moves


def settled(updated: Check, stalled: Check | None, paused: str, complete: str) -> Check | None:
    """The check of Progressing if nothing progresses; None: something does. `paused`: message while
    paused, else "". `complete`: message once everything is as it should be."""
    if stalled is not None:
        return Check("False", stalled.reason, stalled.message)
    if paused:
        return Check("False", reasons.PAUSED, paused)
    return Check("False", "Complete", complete) if updated.is_true else None


def find(status: Mapping[str, Any] | None, kind: str) -> Manifest | None:
    """The condition of one type in a status, with its text where it names another condition."""
    entries = (status or {}).get("conditions") or ()
    condition = next((dict(c) for c in entries if c["type"] == kind), None)
    if condition is not None and (named := _SEE.fullmatch(condition.get("message", ""))):
        texts = {c["type"]: c["message"] for c in entries}
        condition["message"] = texts.get(named[1], condition["message"])
    return condition


def unowned(
    children: Iterable[Manifest], foreign: Iterable[Manifest], service: str, *, paused: bool
) -> Check | None:
    """The check of Updated while children of `service` have no owner, or Deployments of other
    controllers (`foreign`) have its labels; None: neither."""
    if lost := [child for child in children if is_unowned(child, service)]:
        when = "once spec.paused is false" if paused else "now"
        text = f"{listed(lost)}: nothing owns this; it is taken over {when}."
        return Check("False", reasons.TAKING_OVER, text)
    for item in foreign:
        owner = controller(item)
        if owner and item["kind"] == DEPLOYMENT.kind and item["spec"].get("replicas", 1):
            text = f"{listed((item,))}: its pods have the labels of {service} and answer for it, "
            text += f"but {owner['kind']} {owner['name']} controls it. Remove its labels, or it."
            return Check("False", reasons.NOT_OWNED, text)
    return None


def apply_failed(refused: Iterable[Refused]) -> Check | None:
    """The check of Updated and Stalled when the API server refuses children, or others write their
    fields; None if that concerns none of the needed kinds. It names the first refusal in the order
    of the plan, because others depend on it."""
    needed = [refusal for refusal in refused if not refusal.is_optional]
    if not needed:
        return None
    first, *others = sorted(needed, key=attrgetter("is_rewritten"))
    number = sum(refusal.is_rewritten == first.is_rewritten for refusal in others)
    verb = "rewritten" if first.is_rewritten else "refused"
    more = f"; {number} more {verb}: see the events" if number else ""
    return Check("False", reason_of(first), f"{first.error}{more}")


def reason_of(refused: Refused) -> str:
    """The reason of a condition or event about a refusal."""
    return reasons.REWRITTEN if refused.is_rewritten else reasons.APPLY_FAILED


def report_of(
    plan: Plan,
    outcome: ApplyOutcome,
    before: Manifest | None,
    status: Manifest,
    notable: frozenset[str] = frozenset(),
    *,
    warnings_alone: bool = False,
) -> Report:
    """The report after `plan` was carried out. `before`: the last status. `notable`: reasons of
    Updated that get an event although they are normal. `warnings_alone`: other events are dropped,
    because the object's owner reports them."""
    written = [event for event in plan.events if outcome.unwritten.isdisjoint(event.written)]
    refusals = [
        Event("Warning", reason_of(refusal), str(refusal.error)) for refusal in outcome.refused
    ]
    changes = status_events(before, status, notable)
    if outcome.refused:  # each has an event of its own
        own = {reason_of(refusal) for refusal in outcome.refused}
        changes = tuple(event for event in changes if event.reason not in own)
    if warnings_alone:
        changes = tuple(event for event in changes if event.type == "Warning")
    return Report(status, (*written, *refusals), changes)


def status_events(
    before: Manifest | None, after: Manifest, notable: frozenset[str] = frozenset()
) -> tuple[Event, ...]:
    """The event about a change of status: Updated has another status or reason now."""
    was, now = find(before, UPDATED), find(after, UPDATED)
    if now is None or (was and (was["status"], was["reason"]) == (now["status"], now["reason"])):
        return ()
    healthy = now["status"] == "True" or now["reason"] in reasons.HEALTHY
    if healthy and now["status"] != "True" and now["reason"] not in notable:
        return ()
    return (Event("Normal" if healthy else "Warning", now["reason"], now["message"]),)
