"""Placement of pods of Jobs and routers, copied from the templates of a service's pools, so that a
cluster's requirements are stated once. Both copy pull secrets and tolerations; Jobs also
annotations and the node selector, routers the priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sluice_operator.accelerators.node_requirements import tolerations
from sluice_operator.api.pools import Pool
from sluice_operator.api.template import PodTemplate, RouterTemplate

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Placement:
    """Additions to a pod."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    """Fields of the pod's spec."""


AS_IT_COMES: Final = Placement()


def placement_of(pools: Iterable[Pool]) -> Placement:
    """Pull secrets and tolerations of any of `pools`; annotations and node selector on which all
    pools agree. No labels, because users select engines by labels. No priority, because a download
    waits for pods that serve."""
    placed = tuple(pools)
    templates = _templates(placed)
    demands = _demands(templates).to_json_dict()
    devices = [entry for pool in placed for entry in tolerations(pool.accelerator)]
    spec = demands | {
        "tolerations": _distinct([*demands.get("tolerations", ()), *devices]),
        "nodeSelector": _common(template.node_selector for template in templates),
    }
    return Placement(
        annotations=_common(template.annotations for template in templates),
        spec={name: value for name, value in spec.items() if value},
    )


def router_template(own: RouterTemplate | None, pools: Iterable[Pool]) -> RouterTemplate:
    """The template of the routers' pods: the fields of `own`. Where `own` leaves them out: pull
    secrets and tolerations of any of `pools`, and the priority on which all agree. Rules that place
    engines on GPUs are not copied, because routers need no GPUs."""
    templates = _templates(pools)
    priorities = {template.priority_class_name for template in templates}
    agreed = {"priority_class_name": priorities.pop()} if len(priorities) == 1 else {}
    return _demands(templates).model_copy(update=agreed | (_set_fields(own) if own else {}))


def _templates(pools: Iterable[Pool]) -> list[PodTemplate]:
    return [pool.template or PodTemplate() for pool in pools]


def _demands(templates: Sequence[PodTemplate]) -> RouterTemplate:
    """Pull secrets and tolerations, which a cluster may demand of all pods."""
    secrets = [secret for t in templates for secret in t.image_pull_secrets or ()]
    accepted = [toleration for t in templates for toleration in t.tolerations or ()]
    demands = {"image_pull_secrets": _distinct(secrets), "tolerations": _distinct(accepted)}
    # Not validated: demands of two pools together may exceed the limits of one template.
    return RouterTemplate().model_copy(update={k: v for k, v in demands.items() if v})


def _set_fields(template: RouterTemplate) -> dict[str, Any]:
    return {name: value for name, value in template if value is not None}


def _distinct(items: Iterable[_Item]) -> list[_Item]:
    distinct: list[_Item] = []
    for item in items:
        if item not in distinct:
            distinct.append(item)
    return distinct


def _common(items: Iterable[Mapping[str, str] | None]) -> dict[str, str]:
    first, *others = (dict(item or {}) for item in items)
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
