"""What pods of Jobs copy from the templates of a service's pools: placement, pull secrets and
annotations. So a cluster's requirements are stated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_operator.accelerators.node_requirements import tolerations
from sluice_operator.api.pools import Pool
from sluice_operator.api.template import PodTemplate
from sluice_operator.kube.kinds import Manifest


@dataclass(frozen=True)
class Placement:
    """Additions to a pod."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    """Fields of its spec."""


AS_IT_COMES: Final = Placement()


def placement_of(pools: Iterable[Pool]) -> Placement:
    """Pull secrets and tolerations of any of `pools`; annotations and node selector that all pools
    agree on. No labels, because users select engines by labels."""
    placed = tuple(pools)
    templates = [pool.template or PodTemplate() for pool in placed]
    secrets = [secret.to_json_dict() for t in templates for secret in t.image_pull_secrets or ()]
    accepted: list[Manifest] = []
    for pool, template in zip(placed, templates, strict=True):
        accepted += [toleration.to_json_dict() for toleration in template.tolerations or ()]
        accepted += tolerations(pool.accelerator)
    spec = {
        "imagePullSecrets": _distinct(secrets),
        "tolerations": _distinct(accepted),
        "nodeSelector": _common(template.node_selector for template in templates),
    }
    return Placement(
        annotations=_common(template.annotations for template in templates),
        spec={name: value for name, value in spec.items() if value},
    )


def _distinct(items: Iterable[Manifest]) -> list[Manifest]:
    distinct: list[Manifest] = []
    for item in items:
        if item not in distinct:
            distinct.append(item)
    return distinct


def _common(items: Iterable[Mapping[str, str] | None]) -> dict[str, str]:
    first, *others = (dict(item or {}) for item in items)
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
