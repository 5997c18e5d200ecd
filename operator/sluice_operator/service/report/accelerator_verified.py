"""AcceleratorVerified: whether the engines of a pool run on the accelerator they are sized for.

Pure. Reports of ready engines come first, then why no engine starts, then what nodes say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError
from sluice_contract.config.accelerators import Accelerator, Sizes, same_product
from sluice_contract.config.sizing import sizes_of

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


def accelerator_verified(pool: PlannedPool, live: Manifest | None) -> Check | None:
    """The check of one pool; None on CPUs. `live`: its EnginePool, if there is one."""
    if pool.accelerator.accelerator.is_cpu:
        return None
    status = (live or {}).get("status") or {}
    updated = find(status, UPDATED) or {}
    if updated.get("reason") == ACCELERATOR_MISSING:
        return Check("False", ACCELERATOR_MISSING, f"Pool {pool.role}: {updated['message']}")
    reported = status.get("accelerators") or ()
    if not reported:
        nodes_say = pool.accelerator.verified
        return Check(nodes_say.status, nodes_say.reason, f"Pool {pool.role}: {nodes_say.message}")
    reports = [ReportedAccelerator.model_validate(report) for report in reported]
    return _compared(pool, reports)


def with_missing_node(updated: Check, pool: PlannedPool) -> Check:
    """The check of a pool with unplaced pods; says what no node has, if that is the cause."""
    nodes_say = pool.accelerator.verified
    if updated.reason != UNSCHEDULABLE or nodes_say.reason != NO_SUCH_NODE:
        return updated
    count, _, pods = updated.message.partition("; ")
    pods = pods.replace(": no node takes it", " waits").removesuffix(".")
    cause = f"{nodes_say.message.removesuffix('.')}. {pods[:1].upper()}{pods[1:]}."
    return replace(updated, message=f"{count}. {cause}")


def first_unverified(checks: Iterable[Check | None]) -> Check | None:
    """The check to show for all pools: the first that is not True; None: all run on CPUs."""
    on_gpus = [check for check in checks if check is not None]
    return next((check for check in on_gpus if not check.is_true), next(iter(on_gpus), None))


def _compared(pool: PlannedPool, reports: list[ReportedAccelerator]) -> Check:
    planned = sized_for(pool.config_map) or pool.accelerator.accelerator
    head = f"Pool {pool.role}: {', '.join(map(_shown, reports))}"
    named = pool.accelerator.named
    if named and (others := [report for report in reports if not _is(named, report)]):
        text = f"{head}; asked for is {named}, and {others[0].engines} of them have another."
        return Check("False", OTHER_PRODUCT, text)
    if any(_larger(_sizes(planned), _sizes(_accelerator(report))) for report in reports):
        return Check("False", TOO_SMALL, f"{head}; the sizes are those of {planned}.")
    if len(reports) > 1 or not _is(planned.product or "", reports[0]):
        head += f"; sized for {planned}"
    return Check("True", REPORTED, f"{head}.")


def sized_for(config_map: Manifest) -> Accelerator | None:
    """The accelerator that an engine's file names."""
    text: Mapping[str, Any] = json.loads(config_map["data"][ENGINE_FILE])
    try:
        return Accelerator.model_validate(text.get("accelerator"))
    except ValidationError:
        return None


def _shown(report: ReportedAccelerator) -> str:
    verb = "engine reports" if report.engines == 1 else "engines report"
    return f"{report.engines} {verb} {_accelerator(report)}"


def _accelerator(report: ReportedAccelerator) -> Accelerator:
    return Accelerator(product=report.product, memory_mib=report.memory_mib, count=report.count)


def _is(product: str, report: ReportedAccelerator) -> bool:
    return report.product is not None and same_product(report.product, product)


def _sizes(accelerator: Accelerator) -> Sizes:
    return sizes_of(accelerator)[0]


def _larger(planned: Sizes, reported: Sizes) -> bool:
    """Whether a planned step may be too large for the accelerator that was found."""
    return (
        planned.chunk_size > reported.chunk_size
        or planned.cuda_graph_max_batch > reported.cuda_graph_max_batch
    )
