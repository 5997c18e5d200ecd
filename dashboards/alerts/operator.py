"""What the operator finds of services, and what becomes of the operator itself."""

from __future__ import annotations

from typing import Final

from sluice_operator.api.conditions import (
    ACCELERATOR_VERIFIED,
    PROGRESSING,
    READY,
    SCALING_ACTIVE,
    STALLED,
    UPDATED,
)
from sluice_operator.autoscale.events import CONTESTED, FAILED, UNSEEN
from sluice_operator.conditions.reasons import (
    CANARY_ASLEEP,
    CANARY_LATE,
    CANARY_STALLED,
    CANARY_UNDECIDED,
    CANARY_WAITS,
    CANARY_WORSE,
    ROLLOUT_HALTED,
)

from dashboards.alerts.words import AT_NAME, VALUE, is_so, of_names, of_operator
from dashboards.pages import autoscaler, operator, service
from dashboards.promql import largest, series, total

REPLICAS: Final = "sluice_operator_pool_replicas"
IN_POOL: Final = ("namespace", "name", "role")
BLIND: Final = f'reason=~"{UNSEEN}.+|{FAILED}|{CONTESTED}"'
"""Not those of services that nobody asked to scale."""
NOT_TRUE: Final = 'status!="True"'
NO_VERDICT: Final = is_so(
    PROGRESSING, f'reason=~"{"|".join(sorted({*CANARY_UNDECIDED, CANARY_ASLEEP}))}"'
)
"""1 for each service whose canary has no verdict yet."""
HALTED: Final = f'reason=~"{ROLLOUT_HALTED}|{CANARY_WORSE}|{CANARY_LATE}"'


def _replicas(state: str) -> str:
    return largest(series(REPLICAS, f'state="{state}"'), *IN_POOL)


SERVICES: Final = (
    of_names(
        name="SluiceNotReady",
        value=is_so(READY, NOT_TRUE),
        condition="== 1",
        lasting="5m",
        severity="critical",
        summary=f"{AT_NAME}: does not serve",
        description="A pool has no engine that answers, or no router does. The condition Ready "
        "says why, or Updated where Ready points to it.",
        panel=(service.UID, "Conditions"),
    ),
    of_names(
        name="SluiceStalled",
        value=is_so(STALLED, 'status="True"', f'reason!~"{CANARY_WORSE}|{CANARY_LATE}"'),
        condition="== 1",
        lasting="1m",
        severity="critical",
        summary=f"{AT_NAME}: only a person can help",
        description="The spec or a child is refused, or a roll-out has passed its deadline. The "
        "condition Stalled says why. A canary that has ended has SluiceRolloutHalted alone.",
        panel=(service.UID, "Conditions"),
    ),
    of_names(
        name="SluiceNotUpdated",
        value=f"({is_so(UPDATED, NOT_TRUE)} unless {NO_VERDICT})",
        condition="== 1",
        lasting="30m",
        severity="warning",
        summary=f"{AT_NAME}: a change does not come through",
        description="Engines of the revision that is asked for are not complete. The condition "
        "Updated says why. A canary at its step is left out: it has no verdict yet.",
        panel=(service.UID, "Conditions"),
    ),
    of_names(
        name="SluiceRolloutHalted",
        value=is_so(PROGRESSING, 'status="False"', HALTED),
        condition="== 1",
        lasting="2m",
        severity="warning",
        summary=f"{AT_NAME}: a roll-out has stopped",
        description="New engines fail, or were found worse, and the former ones serve on. The "
        "condition Progressing says why.",
        panel=(service.UID, "Conditions"),
    ),
    of_names(
        name="SluiceCanaryStalled",
        value=is_so(PROGRESSING, f'reason="{CANARY_STALLED}"'),
        condition="== 1",
        lasting="5m",
        severity="warning",
        summary=f"{AT_NAME}: a canary has no verdict",
        description="The step has lasted ten times its minutes. Its engines stay, in addition to "
        "all former ones, until a person decides. The condition Progressing has the counts.",
        panel=(service.UID, "Conditions"),
    ),
    of_names(
        name="SluiceCanaryWaits",
        value=is_so(PROGRESSING, f'reason="{CANARY_WAITS}"'),
        condition="== 1",
        lasting="1440m",
        severity="warning",
        summary=f"{AT_NAME}: a canary has waited a day for a decision",
        description="Nothing promotes it but a person. Its engines stay, in addition to all former "
        "ones. The condition Progressing has the step.",
        panel=(service.UID, "Conditions"),
    ),
    of_names(
        name="SluiceEnginesMissing",
        value=f"{_replicas('desired')} - {_replicas('ready')}",
        condition="> 0",
        lasting="30m",
        severity="warning",
        summary=f"{AT_NAME}, pool {{{{ $labels.role }}}}: {VALUE} engines are missing",
        description="Fewer engines are ready than are asked for.",
        panel=(service.UID, "Replicas"),
    ),
    of_names(
        name="SluiceCapacityBlocked",
        value=is_so("", autoscaler.UNSCHEDULABLE),
        condition="== 1",
        lasting="5m",
        severity="warning",
        summary=f"{AT_NAME}: no node has room for its engines",
        description="A pod cannot be scheduled. What runs serves on; the service does not grow.",
        panel=(autoscaler.UID, "Engines without a place"),
    ),
    of_names(
        name="SluiceScalingInactive",
        value=is_so(SCALING_ACTIVE, 'status="False"', BLIND),
        condition="== 1",
        lasting="10m",
        severity="warning",
        summary=f"{AT_NAME}: is not scaled",
        description="The load is not known, or somebody else scales it, too. The condition "
        "ScalingActive says why.",
        panel=(autoscaler.UID, "Why"),
    ),
    of_names(
        name="SluiceAcceleratorUnverified",
        value=is_so(ACCELERATOR_VERIFIED, 'status="False"'),
        condition="== 1",
        lasting="15m",
        severity="warning",
        summary=f"{AT_NAME}: its sizes may not fit the accelerator that it runs on",
        description="The condition AcceleratorVerified says what was expected and what was found.",
        panel=(service.UID, "Conditions"),
    ),
)
OPERATOR: Final = (
    of_operator(
        name="SluiceReconcileErrors",
        value=total(
            f"increase({series('sluice_operator_reconcile_errors_total')}[15m])", "kind", "error"
        ),
        condition="> 3",
        lasting="15m",
        severity="warning",
        summary="Sluice's operator fails to reconcile: {{ $labels.kind }}, {{ $labels.error }}",
        description=f"{VALUE} times in 15 minutes; each is tried again.",
        panel=(operator.UID, "Errors"),
    ),
    of_operator(
        name="SluiceOperatorBlocked",
        value=largest(series("sluice_operator_blocked_kinds"), "kind", "verb"),
        condition="== 1",
        lasting="1m",
        severity="critical",
        summary="Sluice's operator cannot {{ $labels.verb }} {{ $labels.kind }}",
        description="Services go on serving; nothing is scaled, replaced or repaired.",
        panel=(operator.UID, "Reconciles"),
    ),
    of_operator(
        name="SluiceOperatorDown",
        value="absent(sluice_operator_leader == 1)",
        condition="",
        lasting="5m",
        severity="critical",
        summary="Sluice's operator: no replica leads, or none is scraped",
        description="Services go on serving; nothing is scaled, replaced or repaired.",
        panel=(operator.UID, "Leaders"),
    ),
)
