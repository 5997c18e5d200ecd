"""Adapters of a service: in a ConfigMap that engines follow, and not in what makes a revision."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluice_contract.config.adapters import adapters_digest
from sluice_contract.config.engine import EngineConfig
from sluice_operator.cli.rollout.undo import undone
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.manifests.engine import revision_of
from sluice_operator.pool.plan import PoolChildren, plan_pool
from sluice_operator.service.names import child_names
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.status import service_status
from sluice_operator.service.revisions.parts import spec_hash

from tests.operator.examples import (
    MINIMAL_SPEC,
    NOW,
    live,
    of,
    pool_observed,
    service,
    service_observed,
    service_plan,
)
from tests.operator.statuses import condition

NAME = "chat-adapters"
SQL = {"name": "sql", "uri": "pvc://loras/sql/1"}
LAW = {"name": "law", "uri": "pvc://loras/law"}
POEMS = {"name": "poems", "uri": "file:///models/poems"}


def spec_with(*adapters: Manifest, uri: str = "pvc://models/qwen3", **model: Any) -> Manifest:
    return {"model": {"uri": uri, "adapters": list(adapters), **model}}


def plans(spec: Manifest) -> tuple[ServicePlan, PoolChildren]:
    plan = service_plan(spec)
    assert plan.refusal is None, plan.refusal
    return plan, plan_pool(pool_observed(live(plan.pools[0].manifest)))


def revision(spec: Manifest) -> str:
    _, plan = plans(spec)
    assert plan.deployment is not None
    return revision_of(plan.deployment)


def adapters_in(plan: ServicePlan) -> list[Manifest]:
    text = of(plan.apply, CONFIG_MAP.kind, NAME)["data"]["adapters.json"]
    found: list[Manifest] = json.loads(text)["adapters"]
    return found


def test_engines_follow_a_file_with_their_adapters() -> None:
    same_claim = {"name": "same", "uri": "pvc://models/adapters/x/"}
    plan, below = plans(spec_with(SQL, POEMS, same_claim))
    assert adapters_in(plan) == [
        {"name": "sql", "uri": "file:///mnt/adapters/loras/sql/1"},
        {"name": "poems", "uri": "file:///models/poems"},
        {"name": "same", "uri": "file:///mnt/model/adapters/x"},
    ]
    config_map = of(plan.apply, CONFIG_MAP.kind, NAME)
    assert "immutable" not in config_map
    (pool,) = plan.pools
    text = config_map["data"]["adapters.json"]
    assert pool.manifest["spec"]["adaptersDigest"] == adapters_digest(text.encode())
    config = EngineConfig.model_validate_json(pool.config_map["data"]["engine.json"])
    assert config.adapters_file == "/etc/sluice/adapters/adapters.json"
    assert below.deployment is not None
    pod = below.deployment["spec"]["template"]["spec"]
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes["sluice-adapters"]["configMap"] == {"name": NAME}
    assert volumes["sluice-adapters-0"]["persistentVolumeClaim"] == {"claimName": "loras"}
    assert "sluice-adapters-1" not in volumes, "the model's claim is mounted once"
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert mounts["sluice-adapters"] == "/etc/sluice/adapters"
    assert mounts["sluice-adapters-0"] == "/mnt/adapters/loras"


@pytest.mark.parametrize(
    ("uri", "engines_have", "claims"),
    [
        ("pvc://loras/small", "file:///mnt/adapters/loras/small", ["loras"]),
        ("pvc://drafts/small", "file:///mnt/adapters/drafts/small", ["drafts", "loras"]),
        ("pvc://models/small", "file:///mnt/model/small", ["loras"]),
        ("file:///models/small", "file:///models/small", ["loras"]),
        ("dummy://qwen3-tiny", "dummy://qwen3-tiny", ["loras"]),
    ],
)
def test_a_draft_model_is_beside_the_adapters(
    uri: str, engines_have: str, claims: list[str]
) -> None:
    speculation = {"method": "Draft", "draft": {"uri": uri}}
    plan, below = plans(spec_with(SQL) | {"engine": {"speculation": speculation}})
    (pool,) = plan.pools
    config = EngineConfig.model_validate_json(pool.config_map["data"]["engine.json"])
    assert config.speculation is not None
    assert config.speculation.draft is not None
    assert config.speculation.draft.uri == engines_have
    assert pool.manifest["spec"]["adapterClaims"] == claims
    assert below.deployment is not None
    pod = below.deployment["spec"]["template"]["spec"]
    mounts = [m["mountPath"] for m in pod["containers"][0]["volumeMounts"]]
    assert {f"/mnt/adapters/{claim}" for claim in claims} < set(mounts)


def test_a_mount_at_the_place_of_a_draft_model_is_refused() -> None:
    path = "/mnt/adapters/drafts"
    template = {
        "volumes": [{"name": "own", "emptyDir": {}}],
        "volumeMounts": [{"name": "own", "mountPath": path}],
    }
    speculation = {"method": "Draft", "draft": {"uri": "pvc://drafts/small"}}
    engine = {"speculation": speculation}
    plan = service_plan(MINIMAL_SPEC | {"engine": engine, "template": template})
    assert plan.refusal is not None
    assert plan.refusal.message == (
        f'spec.template.volumeMounts[0].mountPath: "{path}" is not allowed; '
        f"allowed: all but {path}, where the draft model is"
    )


def test_a_service_without_adapters_is_as_it_was() -> None:
    plan, below = plans(MINIMAL_SPEC)
    assert NAME not in [item["metadata"]["name"] for item in plan.apply]
    assert "adaptersRef" not in plan.pools[0].manifest["spec"]
    assert "adaptersFile" not in plan.pools[0].config_map["data"]["engine.json"]
    assert "adapters" not in json.dumps(below.deployment)


def test_which_adapters_there_are_makes_no_revision() -> None:
    first = revision(spec_with(SQL))
    assert revision(spec_with(SQL, LAW)) == first
    assert revision(spec_with(LAW, POEMS)) == first
    assert revision(spec_with({**SQL, "uri": "pvc://loras/sql/2"})) == first
    assert revision(spec_with()) == revision(spec_with(POEMS))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"model": {"uri": "pvc://models/qwen3"}}, spec_with()),
        (spec_with(POEMS), spec_with(POEMS, SQL)),
        (spec_with(SQL), spec_with({**SQL, "uri": "pvc://others/sql"})),
    ],
    ids=["the first", "a claim", "another claim"],
)
def test_what_pods_have_to_mount_does(before: Manifest, after: Manifest) -> None:
    assert revision(before) != revision(after)


def test_a_change_is_planned_on_what_is_there() -> None:
    """With all that a former plan has made: the same pods, another ConfigMap."""
    before, below = plans(spec_with(SQL))
    assert below.deployment is not None
    there = [live(item, uid=f"{n}") for n, item in enumerate((*before.apply, below.deployment))]
    after = plan_service(service_observed(service(spec_with(SQL, LAW)), there))
    assert [one["name"] for one in adapters_in(after)] == ["sql", "law"]
    old, new = before.pools[0].manifest["spec"], after.pools[0].manifest["spec"]
    differs = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    assert differs == {"adaptersDigest"}
    assert not after.prune


def test_the_file_stays_while_engines_follow_it() -> None:
    before, below = plans(spec_with(SQL))
    assert below.deployment is not None
    there = [live(item, uid=f"{n}") for n, item in enumerate((*before.apply, below.deployment))]
    without = service({"model": {"uri": "pvc://models/qwen3"}})
    after = plan_service(service_observed(without, there))
    assert NAME not in [reference.name for reference in after.prune]


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        (
            [{"name": "sql", "uri": "oci://org/sql"}],
            'spec.model.adapters[0].uri: "oci://org/sql" is not allowed; allowed: '
            "pvc://claim/path, file:///path, hf://org/name, hf://org/name@revision (oci://image is",
        ),
        ([{"name": "sql", "uri": "pvc://loras"}], "allowed: pvc://claim/path, file:///path"),
        ([{"name": "sql", "uri": "pvc://loras/../x"}], "allowed: a path without '..'"),
        ([SQL, SQL], "spec.model.adapters[1]"),
        (
            [POEMS, {"name": "qwen", "uri": "file:///a"}],
            'spec.model.adapters[1].name: "qwen" is not allowed; allowed: none of the model\'s',
        ),
        (
            [{"name": f"a{n}", "uri": f"pvc://c{n}/a"} for n in range(17)],
            "spec.model.adapters: 17 claims are not allowed; allowed: at most 16",
        ),
    ],
)
def test_what_is_refused(adapters: list[Manifest], words: str) -> None:
    plan = service_plan(spec_with(*adapters, aliases=["qwen"]))
    assert plan.refusal is not None
    assert words in plan.refusal.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        *(
            (
                spec_with(SQL)
                | {
                    "template": {
                        "volumes": [{"name": "own", "emptyDir": {}}],
                        "volumeMounts": [{"name": "own", "mountPath": path}],
                    }
                },
                f'spec.template.volumeMounts[0].mountPath: "{path}" is not allowed; '
                f"allowed: all but {allowed}",
            )
            for path, allowed in (
                ("/mnt/adapters/loras", "/mnt/adapters/loras, where adapters are"),
                ("//mnt/./adapters//loras/", "/mnt/adapters/loras, where adapters are"),
                ("//etc/./sluice//adapters/", "/etc/sluice, /mnt/model"),
            )
        ),
    ],
)
def test_what_contradicts_the_rest_of_the_spec_is_refused(spec: Manifest, words: str) -> None:
    refusal = service_plan(spec).refusal
    assert refusal is not None
    assert words in refusal.message


def test_undoing_a_roll_out_leaves_adapters_as_they_are() -> None:
    former, now = spec_with(SQL), spec_with(LAW, uri="pvc://models/qwen4")
    assert undone(now, former) == {"model": {**former["model"], "adapters": [LAW]}}
    assert spec_hash(spec_with(SQL)) == spec_hash(spec_with(SQL, LAW))
    assert spec_hash(spec_with(SQL)) != spec_hash(spec_with(POEMS))
    assert spec_hash(spec_with(POEMS)) == spec_hash(spec_with())
    on_the_models_claim = spec_with({"name": "own", "uri": "pvc://models/own"})
    assert spec_hash(on_the_models_claim) == spec_hash(spec_with())


def test_a_config_map_of_others_is_not_taken_over() -> None:
    assert (CONFIG_MAP, NAME) in child_names(service(spec_with(SQL)), ())
    assert (CONFIG_MAP, NAME) not in child_names(service(), ())


def told_by(pool: Manifest, **check: str) -> Manifest:
    """The condition of a service whose pool says this of its adapters."""
    spec = spec_with(SQL)
    found = {"type": "AdaptersLoaded", **check}
    status: dict[str, Any] = {"observedGeneration": 1, "conditions": [found]}
    observed = service_observed(service(spec), [live(pool, **status)])
    status = service_status(observed, plan_service(observed), NOW)
    return condition(status, "AdaptersLoaded")


def test_the_condition_says_what_a_pool_says() -> None:
    pool = plans(spec_with(SQL))[0].pools[0].manifest
    found = told_by(pool, status="False", reason="LoadFailed", message="sql is not loaded.")
    assert (found["status"], found["reason"]) == ("False", "LoadFailed")
    assert found["message"] == "Pool mixed: sql is not loaded."
    found = told_by(pool, status="True", reason="Loaded", message="1 of 1.")
    assert (found["status"], found["reason"]) == ("True", "Loaded")
    found = told_by(
        plans(spec_with(LAW))[0].pools[0].manifest, status="True", reason="", message=""
    )
    assert (found["status"], found["reason"]) == ("Unknown", "NotReportedYet")
