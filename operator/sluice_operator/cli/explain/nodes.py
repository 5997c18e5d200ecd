"""The nodes that a service is explained for: those of a file, or one made up for an accelerator.

Reads files; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sluice_contract.base import ConfigError

from sluice_operator.accelerators.node_requirements import product_label, resource_name
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pools import AcceleratorSpec
from sluice_operator.api.template import PodTemplate
from sluice_operator.cli.yaml_text import DuplicateKeyError, ExpandedError, read_yaml_stream
from sluice_operator.kube.kinds import Manifest

EACH_NODE: Final = 8
"""GPUs of the node that is made up."""
ASSUMED: Final = "a node assumed here"
"""Name of the assumed node, for people."""
_OF_NODES: Final = ("accelerator", "template")
"""Sections of a pool that say which nodes its engines may land on."""


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
    """A service whose pools all ask for `product`, and for each pool a node that has it. Pools that
    name another product get this one, and keep their number of GPUs. Values of a wrong type stay,
    and the service is refused for them."""
    if not isinstance(document, Mapping) or not isinstance(document.get("spec"), Mapping):
        return document, ()
    spec = dict(document["spec"])
    prefill = spec.get("prefill")
    if isinstance(prefill, Mapping) and prefill.get("accelerator") is not None:
        spec["prefill"] = _with_product(prefill, product)
    spec = _with_product(spec, product)
    own = spec["prefill"] if isinstance(prefill, Mapping) else {}
    pools = (spec, {**spec, **{key: own[key] for key in _OF_NODES if own.get(key) is not None}})
    nodes = [node for pool in pools if (node := _node(pool, product)) is not None]
    unlike = (node for index, node in enumerate(nodes) if node not in nodes[:index])
    return {**document, "spec": spec}, tuple(unlike)


def _with_product(section: Mapping[str, Any], product: str) -> dict[str, Any]:
    """A section that says what engines run on, with another product."""
    accelerator = section.get("accelerator")
    if accelerator is None or isinstance(accelerator, Mapping):
        return {**section, "accelerator": {**(accelerator or {}), "product": product}}
    return dict(section)


def _node(pool: Mapping[str, Any], product: str) -> Manifest | None:
    """A node that the engines of a pool may land on; None where the pool is refused."""
    try:
        accelerator = parse(AcceleratorSpec, pool["accelerator"], "spec")
        template = parse(PodTemplate, pool.get("template") or {}, "spec")
    except InvalidSpecError:
        return None
    count = str(max(EACH_NODE, accelerator.count or 1))
    labels = {product_label(accelerator): product, **(template.node_selector or {})}
    return {
        "metadata": {"name": ASSUMED, "labels": labels},
        "status": {"allocatable": {resource_name(accelerator): count}},
    }
