"""Whether the priorities of a service's tenants have an effect: only some policies read them.

Pure. Refuses no spec, because a tenant's maxPriority limits requests under every policy.
"""

from __future__ import annotations

from sluice_contract.config.engine import READS_PRIORITY

from sluice_operator.api.conditions import Check
from sluice_operator.api.router import TenantSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.service.plan import ServicePlan


def priorities_check(plan: ServicePlan) -> Check | None:
    """The condition PrioritiesCount; None where no tenant has a priority."""
    assert plan.spec is not None
    names = [tenant.name for tenant in _tenants(plan.spec) if _has_priority(tenant)]
    if not names:
        return None
    # Prompts wait in the first pool: mixed or prefill.
    pool, key = plan.pools[0], "schedulingPolicy"
    policy = pool.settings["scheduling_policy"].value
    if policy in READS_PRIORITY:
        return Check("True", "PolicyReadsThem", f"{key} is {policy}.")
    path = f"{plan.spec.engine_place(pool.role, key)}.{key}"
    text = (
        f"spec.router.auth.tenants: the priorities of {', '.join(names)} change no order under "
        f"{key} {policy}; set {path} to "
        f"{' or '.join(READS_PRIORITY)}. A request above its maxPriority is refused all the same."
    )
    return Check("False", "PolicyIgnoresThem", text)


def _tenants(spec: InferenceServiceSpec) -> list[TenantSpec]:
    auth = spec.router.auth if spec.router else None
    return (auth.tenants or []) if auth else []


def _has_priority(tenant: TenantSpec) -> bool:
    return bool(tenant.default_priority or tenant.max_priority is not None)
