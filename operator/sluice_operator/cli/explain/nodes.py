"""The nodes that a service is explained for: those of a file, or one made up for an accelerator.

Reads files; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role

from sluice_operator.accelerators.node_requirements import product_label, resource_name
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pools import AcceleratorSpec
from sluice_operator.cli.yaml_text import DuplicateKeyError, ExpandedError, read_yaml_stream
from sluice_operator.kube.kinds import Manifest

EACH_NODE: Final = 8
"""GPUs of the node that is made up."""
ASSUMED: Final = "a node assumed here"
"""Its name, for people."""


def read_nodes(file: str) -> tuple[Manifest, ...]:
    """The nodes in a file that `kubectl get nodes -o yaml` has written, or -o json.

    Raises:
        ConfigError: it cannot be read, or has no node.
    """
    try:
        documents = list(read_yaml_stream(Path(file).read_text()))
    except (OSError, ValueError, DuplicateKeyError, ExpandedError) as error:
        line = " ".join(str(error).split())
        raise ConfigError("--nodes", file, f"a readable YAML file ({line})") from None
    items = [item for document in documents for item in _items(document)]
    nodes = tuple(item for item in items if isinstance(item, dict) and item.get("kind") == "Node")
    if not nodes:
        raise ConfigError("--nodes", file, "nodes, as kubectl get nodes -o yaml writes them")
    return nodes


def _items(document: Any) -> list[Any]:
    if not isinstance(document, Mapping):
        return []
    items = document.get("items")
    return list(items) if isinstance(items, list) else [document]


def on_accelerator(document: Any, product: str) -> tuple[Any, tuple[Manifest, ...]]:
    """A service whose pools all ask for a product, and a node that has it. Pools that name another
    product get this one; how many each engine has stays."""
    if not isinstance(document, Mapping) or not isinstance(document.get("spec"), Mapping):
        return document, ()
    spec = document["spec"]
    pools_given = spec.get("pools") if isinstance(spec.get("pools"), Mapping) else {}
    roles = _roles(spec.get("mode") == "Disaggregated", pools_given)
    pools, labels, offered = dict(pools_given), dict[str, str](), dict[str, str]()
    for role in roles:
        pool = pools_given.get(role.value) or {}
        accelerator = {**(pool.get("accelerator") or {}), "product": product}
        pools[role.value] = {**pool, "accelerator": accelerator}
        try:
            spec_accelerator = parse(AcceleratorSpec, accelerator, "spec")
        except InvalidSpecError:
            continue  # the service is refused for it
        labels[product_label(spec_accelerator)] = product
        labels |= (pool.get("template") or {}).get("nodeSelector") or {}
        offered[resource_name(spec_accelerator)] = str(max(EACH_NODE, spec_accelerator.count or 1))
    node = {
        "metadata": {"name": ASSUMED, "labels": labels},
        "status": {"allocatable": offered},
    }
    return {**document, "spec": {**spec, "pools": pools}}, (node,)


def _roles(apart: bool, pools: Mapping[str, Any]) -> tuple[Role, ...]:
    """Pools to put on the product: of two where one alone is given, that one, so that the service
    is refused as it stands."""
    if not apart:
        return (Role.MIXED,)
    both = (Role.PREFILL, Role.DECODE)
    return tuple(role for role in both if pools.get(role.value) is not None) or both
