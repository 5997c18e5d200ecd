"""Engines of a canary that end, or lose readiness, by their pods: reason enough without statistics.

Pure. Pods that are being deleted do not count: nodes drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import inf
from typing import Final, NamedTuple

from sluice_operator.api.template import ENGINE_CONTAINER
from sluice_operator.conditions.pods import (
    failure_of,
    is_draining,
    is_finished,
    is_ready,
    pod_condition,
)
from sluice_operator.kube.kinds import Manifest

ENDS: Final = 2
"""Ends of engines within `END_SECONDS` that are too many, or `ENDS_PERCENT` of them if that is
more. Engines of one node that end in the same minute count once: the node may be the cause."""
ENDS_PERCENT: Final = 20
END_SECONDS: Final = 3600.0
"""Ends further apart are accidents."""
MAX_PODS: Final = 400
"""Pods that are looked at, as each takes about 100 bytes of the revision's annotation."""
LOSSES: Final = 2
"""How often one engine loses readiness until that is too often."""
LOSS_SECONDS: Final = 600.0
"""Losses of readiness further apart are accidents."""

UNKNOWN: Final = "Unknown"
"""Reason of an end that kubelet has not seen."""


class PodSeen(NamedTuple):
    """One engine's pod since a step began."""

    ends: int = 0
    """Ends of its engine that were looked at."""
    losses: int = 0
    """How often it was ready no longer, each time soon after the one before."""
    ready_since: str = ""
    """Time since which it is ready, as Kubernetes writes it; empty while it is not."""
    lost_at: str = ""
    """Time of the last loss of readiness, likewise; empty before."""
    recent_ends: int = 0
    """Ends of its engine since the step began, each soon after the one before."""
    ended_at: str = ""
    """Time of the last one, likewise; empty before."""


def pods_seen(before: Mapping[str, PodSeen] | None, pods: Iterable[Manifest]) -> dict[str, PodSeen]:
    """The pods with what their statuses show now. `before`: None where a step begins, so that
    earlier ends do not count; those of pods that come later do."""
    seen = {}
    known = before or {}
    by_name = sorted(filter(_is_counted, pods), key=lambda p: (_name(p) not in known, _name(p)))
    for pod in by_name[:MAX_PODS]:
        name, condition = _name(pod), pod_condition(pod, "Ready")
        last = PodSeen(_ends(pod)) if before is None else before.get(name, PodSeen())
        since = str(condition.get("lastTransitionTime", ""))
        ready = since if is_ready(pod) else ""
        if last.ready_since not in ("", ready):
            is_soon = _seconds(last.lost_at, since) <= LOSS_SECONDS
            last = last._replace(losses=1 + (last.losses if is_soon else 0), lost_at=since)
        seen[name] = _with_ends(last, pod)._replace(ready_since=ready)
    return seen


def often_ended(seen: Mapping[str, PodSeen], pods: Iterable[Manifest]) -> str:
    """Text about engines of a revision that have ended too often, all together, or about the first
    one that has lost readiness too often; empty: none has."""
    counted = [pod for pod in pods if _is_counted(pod) and _name(pod) in seen]
    last = max((seen[_name(pod)].ended_at for pod in counted), default="")
    recent = [
        pod
        for pod in counted
        if (one := seen[_name(pod)]).recent_ends and _is_soon(one.ended_at, last)
    ]
    ended = {_name(pod): seen[_name(pod)].recent_ends for pod in recent}
    together = {(_node(pod), seen[_name(pod)].ended_at[:16]) for pod in recent}
    engines = sum(not is_finished(pod) for pod in counted)
    if sum(ended.values()) - len(recent) + len(together) >= max(
        ENDS, -(-ENDS_PERCENT * engines // 100)
    ):
        causes = [_cause(pod) for pod in counted if _name(pod) in ended]
        why = next(filter(None, causes), "")
        if len(ended) == 1:
            ((name, ends),) = ended.items()
            return f"pod {name} has ended {ends} times{why}"
        return f"{len(ended)} engines have ended {sum(ended.values())} times{why}"
    for pod in counted:
        name = _name(pod)
        if (losses := seen[name].losses) >= LOSSES:
            return f"pod {name} has lost readiness {losses} times{_cause(pod)}"
    return ""


def _is_counted(pod: Manifest) -> bool:
    """Whether a pod says something of its engine: not one that leaves, or ended for reasons of the
    node other than memory and disk."""
    return not is_draining(pod) and (not is_finished(pod) or _is_evicted(pod))


def _is_evicted(pod: Manifest) -> bool:
    """Whether kubelet has ended the pod for memory or disk, its own or the node's."""
    status = pod.get("status") or {}
    return status.get("phase") == "Failed" and status.get("reason") == "Evicted"


def _ends(pod: Manifest) -> int:
    """How often the pod's engine has ended; other containers do not count."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    engines = (status for status in statuses if status["name"] == ENGINE_CONTAINER)
    return sum(int(status.get("restartCount", 0)) for status in engines) + _is_evicted(pod)


def _with_ends(last: PodSeen, pod: Manifest) -> PodSeen:
    """The pod with the ends of its engine since the last look. An end of unknown reason, as by a
    reboot of the node, is none."""
    ends, ended = _ends(pod), _last_end(pod)
    new = ends - last.ends - (ended.get("reason") == UNKNOWN)
    if new <= 0:
        return last._replace(ends=ends)
    at = str(ended.get("finishedAt") or "")
    recent = new + (last.recent_ends if _is_soon(last.ended_at, at) else 0)
    return last._replace(ends=ends, recent_ends=recent, ended_at=at)


def _is_soon(earlier: str, later: str) -> bool:
    """Whether two ends are within `END_SECONDS`; also where a time is unknown."""
    return _seconds(earlier, later) <= END_SECONDS or not (earlier and later)


def _last_end(pod: Manifest) -> Manifest:
    """How the pod's engine has ended last, as Kubernetes writes it; empty: unknown."""
    if _is_evicted(pod):
        return {"finishedAt": pod_condition(pod, "Ready").get("lastTransitionTime")}
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    engine: Manifest = next(
        (status for status in statuses if status["name"] == ENGINE_CONTAINER), {}
    )
    ended: Manifest = (engine.get("lastState") or {}).get("terminated") or {}
    return ended


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def _node(pod: Manifest) -> str:
    """The pod's node; its own name before it has one."""
    return str(pod["spec"].get("nodeName") or _name(pod))


def _cause(pod: Manifest) -> str:
    """Why a pod is not ready, in parentheses; empty where that is unknown."""
    if _is_evicted(pod):
        return f" (Evicted: {str(pod['status'].get('message', '')).strip()})"
    failure = failure_of(pod)
    return f" ({failure.reason}: {failure.message})" if failure else ""


def _seconds(earlier: str, later: str) -> float:
    """Seconds between two times as Kubernetes writes them; endless where one of both is none."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (TypeError, ValueError):  # empty, or somebody has broken the state
        return inf
