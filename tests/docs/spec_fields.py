"""Which fields the spec of an InferenceService has, by their paths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from sluice_operator.api.crd import inference_service_crd


@cache
def fields_of_specs() -> frozenset[str]:
    """`engine.chunkSize`, `template.affinity` and so on."""
    version = inference_service_crd()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return frozenset(_paths(spec, ""))


def _paths(node: dict[str, Any], path: str) -> Iterator[str]:
    for name, child in node.get("properties", {}).items():
        yield f"{path}{name}"
        yield from _paths(child, f"{path}{name}.")
