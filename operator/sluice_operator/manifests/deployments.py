"""Deployments made by several releases: annotations about their inputs, and when one stays as it
is.

A Deployment carries a hash of its inputs: all that a user decides about it. While the inputs are
the same, it stays as it was applied. A new release would often write the pods differently, and that
would restart them.
"""

from __future__ import annotations

from typing import Final

from sluice_contract.cluster import labels

from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import DESIRED_HASH, digest, fields_hash, note_of

INPUTS: Final = f"{labels.GROUP}/inputs"
"""Annotation: hash of what a user decides about a Deployment's pods."""
TEMPLATE: Final = f"{labels.GROUP}/template"
"""Annotation: hash of the pods that were asked for, and of their selector."""
TEMPLATE_FIELDS: Final = f"{labels.GROUP}/template-fields"
"""Annotation: hash of which fields of the pod template were applied, whatever their values."""
RESTARTED_AT: Final = f"{labels.GROUP}/restarted-at"
"""Annotation of pods: the restart that was asked for last."""

UNTRIED: Final = f"{labels.GROUP}/untried"
"""Annotation: the Deployment was made without engines, and has not been asked for one since."""

OWNERS: Final = "ownerReferences"
_ATOMIC: Final = frozenset(
    {"fieldRef", "secretKeyRef", "configMapKeyRef", "nodeSelector", "labelSelector"}
)
"""Maps of a pod that the API server's schema calls atomic."""


def deployment_with(manifest: Manifest, replicas: int, inputs: str) -> Manifest:
    """`manifest`, a Deployment without `replicas`, with that number and our annotations. The hash
    excludes the number, so another planner can change the number alone."""
    notes = (manifest["metadata"].get("annotations") or {}) | {
        INPUTS: inputs,
        TEMPLATE: digest([manifest["spec"]["template"], manifest["spec"]["selector"]]),
        TEMPLATE_FIELDS: fields_hash(manifest["spec"]["template"], _ATOMIC),
    }
    noted = manifest | {"metadata": manifest["metadata"] | {"annotations": notes}}
    stamp = notes | {DESIRED_HASH: f"{digest(noted)}.{replicas}"}
    return noted | {
        "metadata": noted["metadata"] | {"annotations": stamp},
        "spec": {"replicas": replicas, **manifest["spec"]},
    }


def restart_mark(restarted_at: str | None) -> dict[str, str]:
    """The annotation that makes pods differ from those before a restart; empty without a
    restart."""
    return {RESTARTED_AT: restarted_at} if restarted_at else {}


def with_replicas(manifest: Manifest, replicas: int) -> Manifest:
    """A Deployment of `deployment_with`, with another number of replicas."""
    made = note_of(manifest, DESIRED_HASH).partition(".")[0]
    annotations = dict(manifest["metadata"].get("annotations") or {})
    annotations |= {DESIRED_HASH: f"{made}.{replicas}"}
    return manifest | {
        "metadata": manifest["metadata"] | {"annotations": annotations},
        "spec": manifest["spec"] | {"replicas": replicas},
    }


def with_trial(manifest: Manifest, live: Manifest | None) -> Manifest:
    """A Deployment of `deployment_with`, with a note whether it was ever asked for an engine.
    `live`: the current one."""
    is_untried = not manifest["spec"]["replicas"] and (live is None or bool(note_of(live, UNTRIED)))
    annotations = {k: v for k, v in _annotations(manifest).items() if k != UNTRIED}
    annotations |= {UNTRIED: "true"} if is_untried else {}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": annotations}}


def to_apply(built: Manifest, applied: Manifest | None) -> Manifest:
    """The Deployment to apply: the pods of `applied` if `built` has the same inputs, else `built`.

    `built`: as this release makes it. `applied`: as another release applied the live one. `built`
    is also used if somebody has edited the live pods, which have restarted anyway, or if only a
    restart is new.
    """
    if applied is None:
        return built
    before = restart_mark(_annotations(applied["spec"]["template"]).get(RESTARTED_AT))
    if note_of(applied, TEMPLATE) in ("", note_of(_restarted(built, before), TEMPLATE)):
        return built
    fields = fields_hash(applied["spec"].get("template"), _ATOMIC)
    edited = fields != note_of(applied, TEMPLATE_FIELDS)
    if edited or note_of(applied, INPUTS) != note_of(built, INPUTS):
        return built
    mark = restart_mark(_annotations(built["spec"]["template"]).get(RESTARTED_AT))
    kept = _restarted(applied, mark, built["spec"]["strategy"])
    owners = {key: built["metadata"][key] for key in (OWNERS,) if key in built["metadata"]}
    owned = kept | {"metadata": kept["metadata"] | owners}  # it may have lost them
    return with_replicas(owned, built["spec"]["replicas"])


def _restarted(
    applied: Manifest, mark: dict[str, str], strategy: Manifest | None = None
) -> Manifest:
    """`applied` with the restart `mark` and, where one is given, another strategy; otherwise the
    same pods."""
    template, former = applied["spec"]["template"], applied["spec"].get("strategy")
    strategy = strategy or former
    before = _annotations(template)
    if restart_mark(before.get(RESTARTED_AT)) == mark and strategy == former:
        return applied
    annotations = {key: value for key, value in before.items() if key != RESTARTED_AT} | mark
    metadata = {k: v for k, v in template["metadata"].items() if k != "annotations"}
    metadata |= {"annotations": annotations} if annotations else {}
    ours = {INPUTS, TEMPLATE, TEMPLATE_FIELDS, DESIRED_HASH}
    notes = {key: value for key, value in _annotations(applied).items() if key not in ours}
    spec = {key: value for key, value in applied["spec"].items() if key != "replicas"}
    made = applied | {
        "metadata": applied["metadata"] | {"annotations": notes},
        "spec": spec | {"strategy": strategy, "template": template | {"metadata": metadata}},
    }
    return deployment_with(made, applied["spec"].get("replicas", 1), note_of(applied, INPUTS))


def _annotations(manifest: Manifest) -> dict[str, str]:
    return dict(manifest["metadata"].get("annotations") or {})
