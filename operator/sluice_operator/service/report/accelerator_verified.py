"""AcceleratorVerified: whether the engines of a pool run on what they are sized for.

Pure. What ready engines report counts most, then why none starts, then what the nodes say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError
from sluice_contract.accelerators import Accelerator, Sizes, same_product
from sluice_contract.sizing import sizes_of

from sluice_operator.accelerators.find import NO_SUCH_NODE
from sluice_operator.api.conditions import UPDATED, Check
from sluice_operator.api.status import ReportedAccelerator
from sluice_operator.conditions.conditions import find
from sluice_operator.conditions.pods import ACCELERATOR_MISSING, UNSCHEDULABLE
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.service.rollout.planned_rollout import PlannedPool

REPORTED: Final = "ReportedByEngines"
OTHER_PRODUCT: Final = "OtherProduct"
TOO_SMALL: Final = "SmallerThanSizedFor"


def accelerator_verified(pool: PlannedPool, live: Manifest | None) -> Check:
    """The check of one pool; `live`: its EnginePool, if there is one."""
    if pool.accelerator.accelerator.is_cpu:
        return pool.accelerator.verified
    status = (live or {}).get("status") or {}
    updated = find(status, UPDATED) or {}
    if updated.get("reason") == ACCELERATOR_MISSING:
        return Check("False", ACCELERATOR_MISSING, f"Pool {pool.role}: {updated['message']}")
    reported = status.get("accelerators") or ()
    if not reported:
        found = pool.accelerator.verified
        return Check(found.status, found.reason, f"Pool {pool.role}: {found.message}")
    told = [ReportedAccelerator.model_validate(each) for each in reported]
    return _compared(pool, told)


def with_missing_node(updated: Check, pool: PlannedPool) -> Check:
    """The check of a pool whose pods find no place, with what no node has, where it is that."""
    found = pool.accelerator.verified
    if updated.reason != UNSCHEDULABLE or found.reason != NO_SUCH_NODE:
        return updated
    return replace(updated, message=f"{updated.message}; {found.reason}: {found.message}")


def first_unverified(checks: Iterable[Check]) -> Check:
    """Of the checks of all pools the one to show: the first that is not True."""
    found = tuple(checks)
    return next((check for check in found if not check.is_true), found[0])


def _compared(pool: PlannedPool, told: list[ReportedAccelerator]) -> Check:
    planned = sized_for(pool.config_map) or pool.accelerator.accelerator
    head = f"Pool {pool.role}: {', '.join(map(_shown, told))}"
    named = pool.accelerator.named
    if named and (others := [each for each in told if not _is(named, each)]):
        text = f"{head}; asked for is {named}, and {others[0].engines} of them have another."
        return Check("False", OTHER_PRODUCT, text)
    if any(_larger(_sizes(planned), _sizes(_accelerator(each))) for each in told):
        return Check("False", TOO_SMALL, f"{head}; the sizes are those of {planned}.")
    if len(told) > 1 or not _is(planned.product or "", told[0]):
        head += f"; sized for {planned}"
    return Check("True", REPORTED, f"{head}.")


def sized_for(config_map: Manifest) -> Accelerator | None:
    """The accelerator that an engine's file names."""
    text: Mapping[str, Any] = json.loads(config_map["data"][ENGINE_FILE])
    try:
        return Accelerator.model_validate(text.get("accelerator"))
    except ValidationError:
        return None


def _shown(told: ReportedAccelerator) -> str:
    verb = "engine reports" if told.engines == 1 else "engines report"
    return f"{told.engines} {verb} {_accelerator(told)}"


def _accelerator(told: ReportedAccelerator) -> Accelerator:
    return Accelerator(product=told.product, memory_mib=told.memory_mib, count=told.count)


def _is(product: str, told: ReportedAccelerator) -> bool:
    return told.product is not None and same_product(told.product, product)


def _sizes(accelerator: Accelerator) -> Sizes:
    return sizes_of(accelerator)[0]


def _larger(planned: Sizes, found: Sizes) -> bool:
    """Whether a step as planned may be too much for what was found."""
    return (
        planned.chunk_size > found.chunk_size
        or planned.cuda_graph_max_batch > found.cuda_graph_max_batch
    )
