"""The install's RBAC against what the operator's plans write and its reconciles read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    OPTIONAL_CHILDREN,
    POD,
    POOL_CHILDREN,
    SERVICE_CHILDREN,
)
from sluice_operator.manifests.accounts import router_role
from sluice_operator.manifests.metadata import owner

from tests.operator.examples import pool_plan, service, service_plan, written

MANIFESTS = Path(__file__).parents[3] / "manifests"
CACHED = {"model": {"uri": "hf://org/name", "cache": {"size": "1Gi"}}}
READ = {"get", "list", "watch"}
WRITE = {"create", "patch", "delete"}
ROLE_FILES = {
    "cluster": MANIFESTS / "base" / "cluster_role.yaml",
    "namespaced": MANIFESTS / "overlays" / "namespaced" / "role.yaml",
}


def _rules(path: Path) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(path.read_text()))
    rules: list[dict[str, Any]] = next(d for d in documents if d["kind"].endswith("Role"))["rules"]
    return rules


@pytest.fixture(params=list(ROLE_FILES.values()), ids=list(ROLE_FILES))
def rules(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return _rules(request.param)


def _verbs(rules: list[dict[str, Any]], group: str, resource: str) -> set[str]:
    return {
        verb
        for rule in rules
        if group in rule["apiGroups"] and resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def test_whatever_a_plan_applies_may_be_applied_and_pruned(rules: list[dict[str, Any]]) -> None:
    kinds = {kind.kind: kind for kind in (*SERVICE_CHILDREN, *POOL_CHILDREN)}
    for manifest in (*written(service_plan()), *service_plan(CACHED).apply, *pool_plan().apply):
        kind = kinds[manifest["kind"]]
        read = READ - {"get"} if kind == CONTROLLER_REVISION else READ
        assert _verbs(rules, _group(kind.api_version), kind.plural) == read | WRITE, kind.kind


def test_optional_kinds_may_be_applied_and_pruned(rules: list[dict[str, Any]]) -> None:
    for kind in OPTIONAL_CHILDREN:
        assert _verbs(rules, _group(kind.api_version), kind.plural) == READ | WRITE, kind.kind


def test_every_kind_that_children_can_be_is_written_by_some_plan() -> None:
    plans = (service_plan(), service_plan(CACHED), pool_plan())
    manifests = [manifest for plan in plans for manifest in (*plan.apply, plan.decided) if manifest]
    kinds = {manifest["kind"] for manifest in manifests}
    assert kinds == {kind.kind for kind in SERVICE_CHILDREN}


def test_what_is_reconciled_may_be_read_and_reported(rules: list[dict[str, Any]]) -> None:
    for kind in (INFERENCE_SERVICE, ENGINE_POOL):
        group = _group(kind.api_version)
        assert _verbs(rules, group, kind.plural) >= READ
        assert _verbs(rules, group, f"{kind.plural}/status") == {"patch"}
        assert _verbs(rules, group, f"{kind.plural}/finalizers") == {"update"}
    # patch: the deletion cost; create: dry runs, which ask why a Job has no pod
    assert _verbs(rules, "", POD.plural) == {"list", "watch", "patch", "create"}


def test_the_operator_may_give_the_routers_what_it_gives_them(
    rules: list[dict[str, Any]],
) -> None:
    top = owner(INFERENCE_SERVICE, service(), "chat")
    for rule in router_role(top)["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert _verbs(rules, group, resource) >= set(rule["verbs"])


def test_no_wildcards_and_no_secret_is_read() -> None:
    # Templates of the chart render the same rights: tests/release/test_chart.py.
    plain = [path for path in MANIFESTS.rglob("*.yaml") if "templates" not in path.parts]
    for path in plain:
        for document in yaml.safe_load_all(path.read_text()):
            for rule in document.get("rules", ()):
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), path
                if "secrets" in rule["resources"]:
                    assert (rule["resources"], rule["verbs"]) == (
                        ["secrets"],
                        ["create", "patch"],
                    ) or (
                        rule["resourceNames"],
                        rule["verbs"],
                    ) == (["sluice-operator-admission"], ["patch"]), path


@pytest.mark.parametrize("spec", [{}, {"prefill": {}}], ids=["one pool", "two pools"])
def test_the_key_of_a_service_may_be_made(
    rules: list[dict[str, Any]], spec: dict[str, Any]
) -> None:
    (secret,) = service_plan(spec).secrets
    assert (secret.manifest["apiVersion"], secret.manifest["kind"]) == ("v1", "Secret")
    assert _verbs(rules, "", "secrets") == {"create", "patch"}


def test_both_installs_have_the_same_rights() -> None:
    assert _rules(ROLE_FILES["cluster"]) == _rules(ROLE_FILES["namespaced"])
