"""Which engines can work together: the KV fingerprint of a revision, from its engine file, and
whether serving engines have a partner.

Pure. From a file of another release only the fingerprint's inputs are read. Running engines compare
the fingerprints of loaded models; this one is for planning, before any engine runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, get_args

from sluice_contract.config.engine import KvCacheDtype
from sluice_contract.config.kv_transfer import KvFingerprint, differences
from sluice_contract.config.sizing import GENERAL

from sluice_operator.api.conditions import Check
from sluice_operator.conditions import reasons
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest, of_kind
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.manifests.pods import mounted_config_maps

AUTO: Final = "auto"
OWN_TYPES: Final = tuple(name for name in get_args(KvCacheDtype) if name != AUTO)
NO_PAIR: Final = "NoPair"
PAIRED: Final = Check("True", reasons.SERVING, "Engines of all pools work together.")


def fingerprint_of(config_map: Manifest) -> str:
    """The fingerprint of engines with this file; empty when it is unknown."""
    return str(kv_fingerprint_of(config_map) or "")


def kv_fingerprint_of(config_map: Manifest) -> KvFingerprint | None:
    """The fingerprint of engines with this file; None when it is unknown."""
    try:
        return _fingerprint(json.loads((config_map.get("data") or {})[ENGINE_FILE]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def could_be_equal(first: KvFingerprint | None, second: KvFingerprint | None) -> bool:
    """Whether engines with these files may have equal fingerprints after loading. `auto` then
    becomes the model's dtype, which is never one of the dtypes made for the KV cache."""
    if first is None or second is None:
        return True
    types = {first.kv_dtype, second.kv_dtype}
    if AUTO in types and not types & {*OWN_TYPES}:
        second = second.model_copy(update={"kv_dtype": first.kv_dtype})
    return not differences(first, second)


def fingerprint_of_deployment(deployment: Manifest, children: tuple[Manifest, ...]) -> str:
    """The fingerprint of the engines of a Deployment."""
    names = mounted_config_maps(deployment)
    files = (item for item in of_kind(children, CONFIG_MAP) if item["metadata"]["name"] in names)
    return next((fingerprint for item in files if (fingerprint := fingerprint_of(item))), "")


def _fingerprint(file: Mapping[str, Any]) -> KvFingerprint:
    own = file.get("kvCacheDtype", GENERAL["kv_cache_dtype"])
    held_as = file.get("weightDtype", AUTO)
    return KvFingerprint(
        model=file["model"]["uri"],
        model_revision=file["model"].get("revision"),
        # In place of the digest, which includes `weightDtype`.
        weights="" if held_as == AUTO else held_as,
        page_size_tokens=file.get("pageSize", GENERAL["page_size"]),
        kv_dtype=file.get("dtype", GENERAL["dtype"]) if own == AUTO else own,
        tensor_parallel_size=file.get("tensorParallelSize", GENERAL["tensor_parallel_size"]),
    )


def paired(pools: Iterable[Manifest], children: tuple[Manifest, ...], updated: Check) -> Check:
    """Whether each of the live `pools` has a serving engine whose KV cache the others can read.
    `updated`: why the desired revisions are not complete. Pools without any serving engine are
    reported elsewhere, and unknown fingerprints count as equal."""
    serving = {pool["spec"]["role"]: tuple(_serving(pool, children)) for pool in pools}
    if not all(serving.values()):
        return PAIRED
    for several in product(*serving.values()):
        if all(could_be_equal(several[0], other) for other in several[1:]):
            return PAIRED
    reason = NO_PAIR if updated.is_true else updated.reason
    return Check("False", reason, f"{_unlike(serving)}; {updated.message}")


def _serving(pool: Manifest, children: tuple[Manifest, ...]) -> Iterator[KvFingerprint | None]:
    """The fingerprint of each revision that has an engine that serves; None where unknown."""
    files = {item["metadata"]["name"]: item for item in of_kind(children, CONFIG_MAP)}
    for revision in (pool.get("status") or {}).get("revisions") or ():
        if revision["ready"]:
            yield kv_fingerprint_of(files.get(revision["config"], {}))


def _unlike(serving: dict[str, tuple[KvFingerprint | None, ...]]) -> str:
    (first, ours), (second, theirs), *_ = serving.items()
    assert ours[0] is not None
    assert theirs[0] is not None
    what = ", ".join(differences(ours[0], theirs[0]))
    return f"engines of pools {first} and {second} cannot work together ({what})"
