"""What the pods of Jobs take over from the templates of a service's pools, so that what a cluster
asks of pods is said once: where they may run, who pulls their image, how they are annotated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_operator.accelerators.wanted import tolerations
from sluice_operator.api.pools import PoolSpec
from sluice_operator.api.template import PodTemplate
from sluice_operator.kube.kinds import Manifest


@dataclass(frozen=True)
class Placement:
    """Additions to a pod."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    """Fields of its spec."""


AS_IT_COMES: Final = Placement()


def placement_of(pools: Iterable[PoolSpec]) -> Placement:
    """Pull secrets and tolerations of any of `pools`; annotations and node selector as far as all
    of them say the same. No labels: by these, users select engines."""
    given = tuple(pools)
    templates = [pool.template or PodTemplate() for pool in given]
    secrets = [each.to_json_dict() for t in templates for each in t.image_pull_secrets or ()]
    accepted: list[Manifest] = []
    for pool, template in zip(given, templates, strict=True):
        accepted += [each.to_json_dict() for each in template.tolerations or ()]
        accepted += tolerations(pool.accelerator)
    found = {
        "imagePullSecrets": _distinct(secrets),
        "tolerations": _distinct(accepted),
        "nodeSelector": _common(template.node_selector for template in templates),
    }
    return Placement(
        annotations=_common(template.annotations for template in templates),
        spec={name: value for name, value in found.items() if value},
    )


def _distinct(items: Iterable[Manifest]) -> list[Manifest]:
    found: list[Manifest] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def _common(items: Iterable[Mapping[str, str] | None]) -> dict[str, str]:
    first, *others = (dict(item or {}) for item in items)
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
