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
    spec = dict(document["spec"])
    labels, offered = dict[str, str](), dict[str, str]()
    for section in _sections(spec):
        accelerator = {**(section.get("accelerator") or {}), "product": product}
        section["accelerator"] = accelerator
        try:
            spec_accelerator = parse(AcceleratorSpec, accelerator, "spec")
        except InvalidSpecError:
            continue  # the service is refused for it
        labels[product_label(spec_accelerator)] = product
        labels |= (section.get("template") or {}).get("nodeSelector") or {}
        offered[resource_name(spec_accelerator)] = str(max(EACH_NODE, spec_accelerator.count or 1))
    node = {
        "metadata": {"name": ASSUMED, "labels": labels},
        "status": {"allocatable": offered},
    }
    return {**document, "spec": spec}, (node,)


def _sections(spec: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The sections that say what engines run on: the spec, and its own `prefill` where that has an
    accelerator."""
    prefill = spec.get("prefill")
    if not isinstance(prefill, Mapping) or not prefill.get("accelerator"):
        return (spec,)
    spec["prefill"] = dict(prefill)
    return (spec, spec["prefill"])
