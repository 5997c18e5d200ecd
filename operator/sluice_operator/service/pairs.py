"""Whether engines of a service's pools can work together: those that answer now.

Pure. Which revisions answer it takes from the EnginePools, and what their engines' KV cache is
like from the ConfigMaps that these name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from sluice_contract.kv_fingerprint import KvFingerprint, differences

from sluice_operator.api.conditions import Check
from sluice_operator.conditions import reasons
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest, of_kind
from sluice_operator.service.fingerprints import could_be_equal, kv_fingerprint_of

NO_PAIR: Final = "NoPair"
PAIRED: Final = Check("True", reasons.SERVING, "Engines of all pools work together.")


def paired(pools: Iterable[Manifest], children: tuple[Manifest, ...], updated: Check) -> Check:
    """Whether an engine of each of the live `pools` answers whose KV cache the others can read;
    `updated`: what keeps the wanted revisions from it. Pools of which none answers are told
    elsewhere, and what cannot be told is no reason to say that nothing serves."""
    answering = {pool["spec"]["role"]: tuple(_answering(pool, children)) for pool in pools}
    if not all(answering.values()):
        return PAIRED
    for several in product(*answering.values()):
        if all(could_be_equal(several[0], other) for other in several[1:]):
            return PAIRED
    reason = NO_PAIR if updated.is_true else updated.reason
    return Check("False", reason, f"{_unlike(answering)}; {updated.message}")


def _answering(pool: Manifest, children: tuple[Manifest, ...]) -> Iterator[KvFingerprint | None]:
    """The fingerprint of each revision that has an engine that answers; None where unknown."""
    files = {item["metadata"]["name"]: item for item in of_kind(children, CONFIG_MAP)}
    for revision in (pool.get("status") or {}).get("revisions") or ():
        if revision["ready"]:
            yield kv_fingerprint_of(files.get(revision["config"], {}))


def _unlike(answering: dict[str, tuple[KvFingerprint | None, ...]]) -> str:
    (first, ours), (second, theirs), *_ = answering.items()
    assert ours[0] is not None
    assert theirs[0] is not None
    what = ", ".join(differences(ours[0], theirs[0]))
    return f"engines of pools {first} and {second} cannot work together ({what})"
