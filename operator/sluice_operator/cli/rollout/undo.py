"""Which spec a roll-out is undone to, and what is kept of the present one.

Pure. Undo restores what pods are made of. The number of pods, `paused` and the roll-out settings
stay as they are now.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from sluice_operator.api.model_uri import HUB
from sluice_operator.api.service import mode_of
from sluice_operator.cli.preview import table
from sluice_operator.cli.yaml_text import to_yaml
from sluice_operator.delivery.resolved_model import spec_with_commit
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.canary_state import ENDED
from sluice_operator.service.revisions.parts import (
    ADAPTERS,
    CACHE,
    MANNER,
    NUMBERS,
    OF_HUBS,
    PREFILL,
    spec_hash,
)
from sluice_operator.service.revisions.revision import Revision, revisions_of

GITOPS: Final = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "meta.helm.sh/release-name": "Helm",
}
"""Annotation or label → the tool that applies the object from elsewhere."""


class NothingToUndoError(OperatorError):
    """There is no such revision; `str()` says which there are."""


def target(
    service: Manifest,
    children: tuple[Manifest, ...],
    number: int | None,
    serving: Collection[str] = (),
) -> Revision:
    """The revision to go back to: `number`, else the last one that was complete and asks for other
    pods than the present spec; without one, the newest whose engines still serve. Of several with
    these engines it is the oldest: later ones changed the routers, and were never complete. Those
    whose canary has ended are not tried again, unless by their number.
    `serving`: names of the engines' revisions with a ready engine.

    Raises:
        NothingToUndoError: it is not there.
    """
    revisions, now = revisions_of(children), spec_hash(spec_with_commit(service))
    served = [revision for revision in revisions.all if _serves(revision, serving)]
    if number is not None:
        known = {revision.number: revision for revision in (*revisions.complete, *served)}
        if number not in known:
            allowed = ", ".join(map(str, sorted(known))) or "none is recorded"
            raise NothingToUndoError(f"--to-revision: {number} is not there; allowed: {allowed}")
        return known[number]

    def others(among: Iterable[Revision]) -> list[Revision]:
        return [
            revision
            for revision in among
            if spec_hash(revision.spec) != now and revision.canary.verdict not in ENDED
        ]

    if former := others(revisions.complete):
        return former[-1]
    if former := others(served):
        engines = _engines_of(former[-1])
        return next(revision for revision in former if _engines_of(revision) == engines)
    raise NothingToUndoError(
        "no former spec of this service was complete (Updated True), and no engine of one serves; "
        "apply the former file again: kubectl apply -f FILE"
    )


def number_from_now(revision: Revision, children: tuple[Manifest, ...]) -> int:
    """The number that a revision has once it is gone back to: a new one, unless it is the
    newest."""
    there = revisions_of(children)
    return revision.number if revision.number == there.all[-1].number else there.next_number


def engines_ready(pools: Iterable[Manifest]) -> set[str]:
    """Names of the engines' revisions that have a ready engine in these EnginePools."""
    statuses = (pool.get("status") or {} for pool in pools)
    entries = (entry for status in statuses for entry in status.get("revisions") or ())
    return {entry["name"] for entry in entries if entry["ready"]}


def _serves(revision: Revision, serving: Collection[str]) -> bool:
    engines = _engines_of(revision)
    return bool(engines) and engines.issubset(serving)


def _engines_of(revision: Revision) -> set[str]:
    return {pool.engines for pool in revision.pools.values()}


def undone(spec: Manifest, former: Manifest) -> Manifest:
    """`former` with the numbers of `spec`. If only one of the two has `prefill`, the numbers of
    engines stay those of `former`, because those of `spec` count engines of other pools."""
    restored = copy.deepcopy(former)
    _take(restored, spec, "paused")
    _take_numbers(restored, spec)
    if ADAPTERS in restored.get("model", {}) and ADAPTERS in spec.get("model", {}):
        _take(restored["model"], spec["model"], ADAPTERS)
        _add_hub(restored["model"], spec["model"])
    rollout = restored.setdefault("rollout", {})
    for key in MANNER:
        _take(rollout, spec.get("rollout") or {}, key)
    if not rollout:
        del restored["rollout"]
    return restored


def _add_hub(model: Manifest, spec: Manifest) -> None:
    """Adds to `model` the settings that adapters of a hub need, where the former model had no
    hub."""
    if any(str(adapter.get("uri", "")).startswith(f"{HUB}://") for adapter in model[ADAPTERS]):
        for key in (CACHE, *OF_HUBS):
            if key in spec:
                model.setdefault(key, spec[key])


def _take_numbers(restored: Manifest, spec: Manifest) -> None:
    """Gives `restored` the numbers of engines and routers that `spec` has now."""
    if mode_of(restored) == mode_of(spec):
        for key in NUMBERS:
            _take(restored, spec, key)
            if PREFILL in restored:
                _take(restored[PREFILL], spec[PREFILL], key)
    if "replicas" in (spec.get("router") or {}):
        _take(restored.setdefault("router", {}), spec["router"], "replicas")


def restarted(spec: Manifest, now: str) -> Manifest:
    """`spec` with a restart at `now`."""
    return spec | {"rollout": (spec.get("rollout") or {}) | {"restartedAt": now}}


def changes(before: Manifest, after: Manifest) -> str:
    """Differences as a diff of YAML; empty where there are none."""
    old, new = (
        to_yaml(_sorted(manifest)).splitlines(keepends=True) for manifest in (before, after)
    )
    return "".join(difflib.unified_diff(old, new, "spec now", "spec after", n=2))


def history_text(service: Manifest, children: tuple[Manifest, ...]) -> str:
    """The revisions that there are, the newest last."""
    return "\n".join(table([("revision", "made", "model", ""), *_rows(service, children)]))


def puts_back(service: Manifest) -> str | None:
    """The tool that owns the InferenceService and would put its spec back."""
    metadata = service["metadata"]
    marks = (metadata.get("annotations") or {}) | (metadata.get("labels") or {})
    return next((tool for mark, tool in GITOPS.items() if mark in marks), None)


def _rows(service: Manifest, children: tuple[Manifest, ...]) -> Iterator[tuple[str, ...]]:
    now = spec_hash(spec_with_commit(service))
    for revision in revisions_of(children).complete:
        uri = str((revision.spec.get("model") or {}).get("uri", ""))
        in_use = "now" if spec_hash(revision.spec) == now else ""
        yield str(revision.number), revision.made_at, uri, in_use


def _take(restored: Manifest, now: Manifest, key: str) -> None:
    restored.pop(key, None)
    if key in now:
        restored[key] = now[key]


def _sorted(value: Any) -> Any:
    """`value` with the keys of every mapping sorted, so that a moved key is no difference."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
