"""Deployments of more than one release: notes on what each was made from, and when it stays.

A Deployment carries a hash of its inputs: all that a user decides about it. While they are the
same, it stays as it was applied, also when this release would write its pods differently, since
that would restart them.
"""

from __future__ import annotations

from typing import Final

from sluice_contract import labels

from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.applied_fields import fields_hash
from sluice_operator.manifests.digest import digest
from sluice_operator.manifests.metadata import DESIRED_HASH, note_of

INPUTS: Final = f"{labels.GROUP}/inputs"
"""Annotation: hash of what a user decides about a Deployment's pods."""
TEMPLATE: Final = f"{labels.GROUP}/template"
"""Annotation: hash of the pods that were asked for, and of their selector."""
TEMPLATE_FIELDS: Final = f"{labels.GROUP}/template-fields"
"""Annotation: hash of which fields of the pod template were applied, whatever their values."""


_ATOMIC: Final = frozenset(
    {"fieldRef", "secretKeyRef", "configMapKeyRef", "nodeSelector", "labelSelector"}
)
"""Maps of a pod that the API server's schema calls atomic."""


def deployment_with(manifest: Manifest, replicas: int, inputs: str) -> Manifest:
    """`manifest`, a Deployment without `replicas`, with that number and our notes. The number is
    apart from the hash, so that another can be set by one who does not know how it was made."""
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


def with_replicas(manifest: Manifest, replicas: int) -> Manifest:
    """Such a Deployment with another number of replicas."""
    made = note_of(manifest, DESIRED_HASH).partition(".")[0]
    annotations = dict(manifest["metadata"].get("annotations") or {})
    annotations |= {DESIRED_HASH: f"{made}.{replicas}"}
    return manifest | {
        "metadata": manifest["metadata"] | {"annotations": annotations},
        "spec": manifest["spec"] | {"replicas": replicas},
    }


def kept(built: Manifest, applied: Manifest | None) -> Manifest:
    """The Deployment to apply: `built` by this release, or `applied`, what the release before has
    applied of the live one, where both were made of the same inputs. `built` also where somebody
    has edited the live one's pods: they have restarted anyway."""
    if applied is None or note_of(applied, TEMPLATE) in ("", note_of(built, TEMPLATE)):
        return built
    fields = fields_hash(applied["spec"].get("template"), _ATOMIC)
    edited = fields != note_of(applied, TEMPLATE_FIELDS)
    if edited or note_of(applied, INPUTS) != note_of(built, INPUTS):
        return built
    return with_replicas(applied, built["spec"]["replicas"])
