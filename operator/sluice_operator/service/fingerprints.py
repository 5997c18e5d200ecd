"""The KV fingerprint of a revision, from the ConfigMap with its engines' file.

Pure. Of another release's file it reads what the fingerprint is made of, and nothing else. Engines
tell each other theirs as they have loaded it; this one is for planning, before any runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluice_contract.kv_fingerprint import KvFingerprint
from sluice_contract.sizing import GENERAL

from sluice_operator.kube.kinds import CONFIG_MAP, Manifest, of_kind
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.manifests.pods import mounted_config_maps

AUTO: Final = "auto"


def fingerprint_of(config_map: Manifest) -> str:
    """The fingerprint of engines with this file; empty when it cannot be told."""
    return str(kv_fingerprint_of(config_map) or "")


def kv_fingerprint_of(config_map: Manifest) -> KvFingerprint | None:
    """The fingerprint of engines with this file; None when it cannot be told."""
    try:
        return _fingerprint(json.loads((config_map.get("data") or {})[ENGINE_FILE]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def could_be_equal(first: KvFingerprint | None, second: KvFingerprint | None) -> bool:
    """Whether engines of both may turn out to be equal once they have loaded: `auto` becomes what
    the model has."""
    if first is None or second is None:
        return True
    if AUTO in (first.kv_dtype, second.kv_dtype):
        second = second.model_copy(update={"kv_dtype": first.kv_dtype})
    return first == second


def fingerprint_of_deployment(deployment: Manifest, children: tuple[Manifest, ...]) -> str:
    """The fingerprint of the engines of a Deployment."""
    names = mounted_config_maps(deployment)
    files = (item for item in of_kind(children, CONFIG_MAP) if item["metadata"]["name"] in names)
    return next((found for item in files if (found := fingerprint_of(item))), "")


def _fingerprint(file: Mapping[str, Any]) -> KvFingerprint:
    own = file.get("kvCacheDtype", GENERAL["kv_cache_dtype"])
    return KvFingerprint(
        model=file["model"]["uri"],
        model_revision=file["model"].get("revision"),
        page_size_tokens=file.get("pageSize", GENERAL["page_size"]),
        kv_dtype=file.get("dtype", GENERAL["dtype"]) if own == AUTO else own,
        tensor_parallel_size=file.get("tensorParallelSize", GENERAL["tensor_parallel_size"]),
    )
