"""What GitOps tools make of our objects in every recorded state: Argo CD by our Lua, and whoever
goes by kstatus (Flux, kpt, `kubectl wait` of others)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime  # type: ignore[import-untyped]

from tests.operator.statuses import kstatus

ROOT = Path(__file__).parents[3]
ARGOCD = ROOT / "manifests" / "argocd"
LUA = LuaRuntime(register_eval=False)
SCRIPT = (ARGOCD / "health.lua").read_text()
RECORDED = ROOT / "tests" / "golden" / "status"

HEALTHY, PROGRESSING, DEGRADED, SUSPENDED = "Healthy", "Progressing", "Degraded", "Suspended"
CURRENT, IN_PROGRESS, FAILED = "Current", "InProgress", "Failed"
STATES = {
    "pool-draining": (DEGRADED, FAILED),
    "pool-edited": (HEALTHY, CURRENT),
    "pool-gated-for-long": (PROGRESSING, IN_PROGRESS),
    "pool-given-up": (DEGRADED, FAILED),
    "pool-hanging": (DEGRADED, FAILED),
    "pool-killed": (PROGRESSING, IN_PROGRESS),
    "pool-killed-in-a-loop": (DEGRADED, FAILED),
    "pool-loading-for-long": (PROGRESSING, IN_PROGRESS),
    "pool-model-missing": (DEGRADED, FAILED),
    "pool-new": (PROGRESSING, IN_PROGRESS),
    "pool-no-quota": (PROGRESSING, IN_PROGRESS),
    "pool-no-quota-for-long": (DEGRADED, FAILED),
    "pool-no-quota-for-the-next": (DEGRADED, FAILED),
    "pool-orphaned": (DEGRADED, FAILED),
    "pool-paused": (SUSPENDED, IN_PROGRESS),
    "pool-ready": (HEALTHY, CURRENT),
    "pool-rolling-out": (PROGRESSING, IN_PROGRESS),
    "pool-rolling-out-in-vain": (DEGRADED, FAILED),
    "pool-rolling-out-short": (PROGRESSING, IN_PROGRESS),
    "pool-scaled-to-zero": (HEALTHY, CURRENT),
    "pool-scaling-up": (PROGRESSING, IN_PROGRESS),
    "pool-starting": (PROGRESSING, IN_PROGRESS),
    "pool-too-slow": (DEGRADED, FAILED),
    "pool-unschedulable": (PROGRESSING, IN_PROGRESS),
    "service-engines-unschedulable": (PROGRESSING, IN_PROGRESS),
    "service-model-missing": (DEGRADED, FAILED),
    "service-new": (PROGRESSING, IN_PROGRESS),
    "service-outdated": (PROGRESSING, IN_PROGRESS),
    "service-paused": (SUSPENDED, CURRENT),
    "service-paused-before-applying": (SUSPENDED, CURRENT),
    "service-ready": (HEALTHY, CURRENT),
    "service-refused": (DEGRADED, FAILED),
    "service-refused-at-first": (DEGRADED, FAILED),
    "service-router-died-in-a-rollout": (PROGRESSING, IN_PROGRESS),
    "service-routers-given-up": (DEGRADED, FAILED),
    "service-routers-starting": (PROGRESSING, IN_PROGRESS),
    "service-routers-without-an-image": (PROGRESSING, IN_PROGRESS),
    "service-scaled-to-zero": (HEALTHY, CURRENT),
}


def recorded(name: str) -> dict[str, Any]:
    """An object with a recorded status."""
    status = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    return {"metadata": {"generation": status["observedGeneration"]}, "status": status}


def health(item: dict[str, Any]) -> tuple[str, str]:
    """Status and message that Argo CD would show."""
    LUA.globals().obj = LUA.table_from(item, recursive=True)
    found = LUA.execute(SCRIPT)
    return found.status, found.message


def test_every_recorded_state_is_in_the_table() -> None:
    assert {path.stem for path in RECORDED.glob("*.yaml")} == STATES.keys()


@pytest.mark.parametrize("name", STATES)
def test_a_recorded_state_is_judged_alike_by_argo_cd_and_by_kstatus(name: str) -> None:
    item = recorded(name)
    status, message = health(item)
    assert (status, kstatus(item)) == STATES[name]
    reasons = {f"{each['reason']}: {each['message']}" for each in item["status"]["conditions"]}
    assert message in reasons, "a person reads why"
    assert ": See " not in message


def test_a_condition_that_names_another_is_shown_with_its_text() -> None:
    item = recorded("service-engines-unschedulable")
    entries = [c for c in item["status"]["conditions"] if c["type"] != "Reconciling"]
    item["status"]["conditions"] = entries
    texts = {entry["type"]: entry["message"] for entry in entries}
    assert texts["Ready"] == "See Updated."
    assert health(item) == (DEGRADED, f"Unschedulable: {texts['Updated']}")


def test_what_the_operator_has_not_seen_is_in_progress() -> None:
    item = recorded("service-ready")
    item["metadata"]["generation"] += 1
    assert health(item)[0] == PROGRESSING
    assert kstatus(item) == IN_PROGRESS
    new = {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}
    assert health(new)[0] == PROGRESSING
    assert health({"metadata": {"generation": 1}})[0] == PROGRESSING


def test_what_is_being_deleted_is_in_progress() -> None:
    item = recorded("service-refused")
    item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert health(item) == (PROGRESSING, "It is being deleted.")


def test_what_served_once_and_serves_nobody_now_is_degraded() -> None:
    item = recorded("service-ready")
    for each in item["status"]["conditions"]:
        if each["type"] == "Ready":
            each |= {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert health(item) == (DEGRADED, "Unschedulable: 0/3 nodes")


def test_the_patch_of_argo_cds_config_has_the_script_for_both_kinds() -> None:
    patch = yaml.safe_load((ARGOCD / "argocd-cm.yaml").read_text())
    kinds = ("InferenceService", "EnginePool")
    assert patch["data"] == {
        f"resource.customizations.health.serving.sluice.dev_{kind}": SCRIPT for kind in kinds
    }
