"""What this version does not carry out is refused by name, with what is allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.config.supported import ROWS as ENGINE_ROWS
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images
from sluice_operator.service.plan import plan_service
from sluice_operator.validation.errors import ROWS

from tests.operator.examples import FULL_SPEC, pools, service, service_observed, service_plan

REFUSED: dict[str, tuple[Manifest, str]] = {
    "spec.slo": (
        {"slo": {"percentile": 90}},
        "a promise: ttftMilliseconds, itlMilliseconds or both",
    ),
    "spec.engine.tensorParallelSize": ({"engine": {"tensorParallelSize": 2}}, "1 "),
    "spec.engine.cudaGraphMaxBatch": ({"engine": {"cudaGraphMaxBatch": 8}}, "0"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_implemented_is_refused(field: str) -> None:
    spec, allowed = REFUSED[field]
    plan = plan_service(service_observed(service(spec)))
    assert plan.refusal is not None
    assert (plan.refusal.reason, plan.refusal.field) == ("NotImplemented", field)
    assert plan.refusal.message.startswith(f"{field}: ")
    assert f"allowed: {allowed}" in plan.refusal.message
    assert (plan.apply, plan.prune) == ((), ())


@pytest.mark.parametrize("uri", ["hf://org/small", "oci://registry/small:1", "pvc://drafts/../a"])
@pytest.mark.parametrize("path", ["spec.engine", "spec.prefill.engine"])
def test_draft_models_that_engines_cannot_have_are_refused(path: str, uri: str) -> None:
    engine = {"speculation": {"method": "Draft", "draft": {"uri": uri}}}
    spec = {"engine": engine} if path == "spec.engine" else {"prefill": {"engine": engine}}
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    field = f"{path}.speculation.draft.uri"
    assert (refusal.reason, refusal.field) == ("NotImplemented", field)
    assert refusal.message == (
        f'{field}: "{uri}" is not implemented yet; allowed: pvc://claim/path, file:///path, '
        "dummy://name, without '..', or hf://org/name@revision beside spec.model.cache, to which "
        "it is downloaded"
    )


def test_a_draft_model_is_for_methods_that_have_one() -> None:
    ngram = {"method": "NGram", "draft": {"uri": "file:///a"}}
    for speculation in ({"method": "Draft"}, {"method": "Eagle"}, ngram):
        plan = plan_service(service_observed(service({"engine": {"speculation": speculation}})))
        assert plan.refusal is not None
        assert plan.refusal.message.endswith(
            "draft.uri with methods Draft and Eagle, and with no other"
        )


EAGLE: Manifest = {"speculation": {"method": "Eagle", "draft": {"uri": "pvc://heads/qwen3"}}}


def test_a_head_drafts_on_one_gpu_without_graphs() -> None:
    gpu = {"accelerator": {"count": 1}}
    plan = plan_service(service_observed(service({"engine": EAGLE, **gpu})))
    assert plan.refusal is None
    graphs = plan.pools[0].settings["cuda_graph_max_batch"]
    assert (graphs.value, graphs.origin) == (0, "speculation.method Eagle")


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        (
            {"accelerator": {"count": 2}},
            "spec.engine.speculation.method",
            "NGram or Draft for engines of several GPUs (tensorParallelSize is 2)",
        ),
        (
            {"engine": EAGLE | {"cudaGraphMaxBatch": 8}, "accelerator": {"count": 1}},
            "spec.engine.cudaGraphMaxBatch",
            "0 beside speculation.method Eagle, whose steps are no graphs so far",
        ),
        (
            {"engine": {} | EAGLE, "accelerator": {"count": 2}},
            "spec.engine.speculation.method",
            "NGram or Draft for engines of several GPUs (tensorParallelSize is 2)",
        ),
        (
            {"engine": EAGLE | {"hostCache": {"memory": "1Gi"}}},
            "spec.engine.speculation.method",
            "NGram or Draft beside hostCache, which keeps no pages of a head",
        ),
        (
            {"prefill": {}},
            "spec.engine.speculation.method",
            "NGram or Draft in two pools, as the KV cache of a head is not handed over",
        ),
    ],
)
def test_what_a_head_cannot_draft_for_is_refused(spec: Manifest, field: str, says: str) -> None:
    refusal = plan_service(service_observed(service({"engine": EAGLE, **spec}))).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("InvalidSpec", field)
    assert refusal.message.endswith(f"is not allowed; allowed: {says}")


def test_what_only_gpus_have_is_refused_where_a_pool_has_none() -> None:
    engine = {"tensorParallelSize": 1, "cudaGraphMaxBatch": 8}
    gpus = {"accelerator": {"count": 1}}
    both = {"engine": engine, **gpus, "prefill": {}}
    assert plan_service(service_observed(service(both))).refusal is None
    one = {"engine": engine, "prefill": gpus}
    refusal = plan_service(service_observed(service(one))).refusal
    assert refusal is not None
    assert "spec.engine.cudaGraphMaxBatch: 8 in pool decode is not allowed" in refusal.message


@pytest.mark.parametrize(("prefill", "decode"), [(2, 2), (2, 1), (1, 4), (4, 2)])
def test_two_pools_have_engines_of_any_numbers_of_gpus(prefill: int, decode: int) -> None:
    counts = {"prefill": prefill, "decode": decode}
    gpus = {name: {"accelerator": {"count": count}} for name, count in counts.items()}
    plan = service_plan(pools(**gpus))
    assert plan.refusal is None
    sizes = {pool.role: pool.settings["tensor_parallel_size"].value for pool in plan.pools}
    assert sizes == counts


def test_every_row_of_the_table_is_tried() -> None:
    assert {row.field for row in ROWS} <= REFUSED.keys()


def test_the_engines_table_holds_here_too() -> None:
    assert {f"spec.engine.{row.key}" for row in ENGINE_ROWS} >= {
        field for field in REFUSED if field.startswith("spec.engine")
    }


def test_everything_refused_is_told_at_once() -> None:
    both = {"engine": {"tensorParallelSize": 2}, "slo": {"percentile": 90}}
    plan = plan_service(service_observed(service(both)))
    assert plan.refusal is not None
    assert "spec.engine.tensorParallelSize" in plan.refusal.message
    assert "spec.slo" in plan.refusal.message


def test_every_contradiction_is_told_at_once() -> None:
    engine = {
        "mixedChunk": False, "kvPoolTokens": 1000, "schedulingPolicy": "lpm", "prefixCache": False,
    }  # fmt: skip
    spec = {"slo": {"itlMilliseconds": 50}, "engine": engine}
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("InvalidSpec", "spec.engine.kvPoolTokens")
    for key in ("kvPoolTokens: 1000", 'schedulingPolicy: "lpm"', "mixedChunk: false"):
        assert f"spec.engine.{key} is not allowed; allowed: " in refusal.message


@pytest.mark.parametrize(
    "template",
    [{"affinity": {"podAffinity": {}}}, {"initContainers": [{"name": "a", "image": "a"}]}],
    ids=["affinity to pods", "init containers"],
)
def test_routers_lack_what_only_engines_have(template: Manifest) -> None:
    refusal = plan_service(service_observed(service({"router": {"template": template}}))).refusal
    assert refusal is not None
    assert refusal.field.startswith("spec.router.template.")
    assert "unknown" in refusal.message


def test_every_invalid_field_is_told_at_once() -> None:
    spec = {"mode": "Both", "engine": {"dtype": "int3"}}
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    assert refusal.reason == "InvalidSpec"
    assert "spec.mode: " in refusal.message
    assert "spec.engine.dtype: " in refusal.message


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        (
            {"engine": {"kvTransfer": {"bootstrapPort": 8000}}},
            "spec.engine.kvTransfer.bootstrapPort",
            "8000 is not allowed; allowed: a port that engines do not use",
        ),
        (
            {"engine": {"kvTransfer": {"bootstrapPort": 8080}}},
            "spec.engine.kvTransfer.bootstrapPort",
            "8080 is not allowed; allowed: another port, as the engine has its metrics there",
        ),
        (
            {"template": {"sidecars": [
                {"name": "a", "image": "a", "ports": [{"containerPort": 8080}]}]}, "prefill": {}},
            "spec.template.sidecars[0].ports",
            "8080 is not allowed",
        ),
        (
            {"router": {"template": {"sidecars": [
                {"name": "a", "image": "a", "ports": [{"containerPort": 8080}]}]}}},
            "spec.router.template.sidecars[0].ports[0].containerPort",
            "8080 is not allowed; allowed: all but 8000 and 8080, the router's own",
        ),
        (
            {"engine": {"kvTransfer": {"bootstrapPort": 17000}}, "prefill": {}},
            "spec.engine.kvTransfer.bootstrapPort",
            "17000 is not allowed",
        ),
        (
            {"engine": {"kvTransfer": {"protocol": "rdma", "backend": "TCP"}}},
            "spec.engine.kvTransfer.protocol",
            '"rdma" is not allowed; allowed: tcp with backend TCP',
        ),
        (
            {"engine": {"kvTransfer": {"backend": "NIXL"}}},
            "spec.engine.kvTransfer.protocol",
            '"tcp" is not allowed; allowed: rdma with backend NIXL',
        ),
        (
            {"engine": {"kvTransfer": {"device": "mlx5_0"}}},
            "spec.engine.kvTransfer.device",
            '"mlx5_0" is not allowed; allowed: only with protocol rdma',
        ),
        (
            {"engine": {"kvTransfer": {"resourceName": "rdma/a"}}},
            "spec.engine.kvTransfer.resourceName",
            '"rdma/a" is not allowed; allowed: only with protocol rdma',
        ),
        (
            {"prefill": {"engine": {"pageSize": 32}}},
            "spec.prefill.engine.pageSize",
            "32 in pool prefill is not allowed beside 16 in pool decode",
        ),
    ],
)  # fmt: skip
def test_two_pools_that_cannot_work_together_are_refused(
    spec: Manifest, field: str, says: str
) -> None:
    refusal = plan_service(service_observed(service({"prefill": {}} | spec))).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("InvalidSpec", field)
    assert says in refusal.message


SAME = "allowed: the same in both, which hand each other the KV cache"


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        ({"engine": {"pageSize": 8}, "prefill": {"engine": {"chunkSize": 8, "pageSize": 8}}}, []),
        ({"engine": {"pageSize": 8}, "prefill": {"engine": {"chunkSize": 8}}}, []),
        ({"engine": {"pageSize": 8}, "prefill": {"engine": {"maxPrefillTokens": 8}}}, []),
        (
            {"prefill": {"engine": {"chunkSize": 8}}},
            [
                "spec.prefill.engine.chunkSize: 8 is not allowed; "
                "allowed: -1 (off) or at least pageSize (16)"
            ],
        ),
        (
            {"engine": {"minPrefillTokens": 4096}, "prefill": {"engine": {"chunkSize": 2048}}},
            [
                "spec.engine.minPrefillTokens: 4096 in pool prefill is not allowed; allowed: at "
                "most chunkSize (2048), where spec.prefill.engine.chunkSize is 2048",
                "spec.engine.minPrefillTokens: 4096 in pool decode is not allowed; allowed: at "
                "most chunkSize (512)",
            ],
        ),
        (
            {"engine": {"minPrefillTokens": 4096}, "prefill": {}},
            ["spec.engine.minPrefillTokens: 4096 is not allowed; allowed: at most chunkSize (512)"],
        ),
        (
            {
                "engine": {"hostCache": {"memory": "1Gi"}},
                "prefill": {"engine": {"prefixCache": False}},
            },
            [
                'spec.engine.hostCache: {"memory":"1Gi"} in pool prefill is not allowed; allowed: '
                "only beside prefixCache, where spec.prefill.engine.prefixCache is false"
            ],
        ),
        (
            {
                "engine": {"prefixCache": False},
                "prefill": {"engine": {"schedulingPolicy": "lpm"}},
            },
            [
                'spec.prefill.engine.schedulingPolicy: "lpm" is not allowed; allowed: a policy '
                "other than lpm and dfs-weight, which need prefixCache, where "
                "spec.engine.prefixCache is false"
            ],
        ),
        (
            {
                "engine": {"kvPoolTokens": 100, "pageSize": 8},
                "prefill": {"engine": {"pageSize": 16}},
            },
            [
                "spec.prefill.engine.pageSize: 16 in pool prefill is not allowed beside 8 in pool "
                f"decode; {SAME}",
                "spec.engine.kvPoolTokens: 100 in pool prefill is not allowed; allowed: a multiple "
                "of pageSize (16), as 96 or 112, where spec.prefill.engine.pageSize is 16",
                "spec.engine.kvPoolTokens: 100 in pool decode is not allowed; allowed: a multiple "
                "of pageSize (8), as 96 or 104",
            ],
        ),
        (
            {"engine": {"attentionBackend": "flashinfer"}, "prefill": {"accelerator": {}}},
            [
                'spec.engine.attentionBackend: "flashinfer" in pool decode is not allowed; '
                "allowed: auto, native or torch without an accelerator"
            ],
        ),
        (
            {"engine": {"attentionBackend": "flashinfer"}, "prefill": {}},
            [
                'spec.engine.attentionBackend: "flashinfer" is not allowed; '
                "allowed: auto, native or torch without an accelerator"
            ],
        ),
        (
            {
                "prefill": {
                    "engine": {"hostCache": {"memory": "1Gi", "disk": {"size": "1Gi"}}},
                    "template": {"volumes": [{"name": "sluice-host-cache", "emptyDir": {}}]},
                }
            },
            [
                'spec.prefill.template.volumes[0].name: "sluice-host-cache" is not allowed; '
                "allowed: all but sluice-host-cache, where spec.prefill.engine.hostCache.disk is"
            ],
        ),
    ],
)
def test_merged_settings_are_refused_by_what_a_user_wrote(
    spec: Manifest, messages: list[str]
) -> None:
    refusal = plan_service(service_observed(service(spec))).refusal
    refusals = (refusal.parts or (refusal,)) if refusal else ()
    assert [part.message for part in refusals] == messages
    for part in refusals:
        assert part.message.startswith(f"{part.field}: ")


@pytest.mark.parametrize(
    ("spec", "section"),
    [
        ({"prefill": {"accelerator": {}}}, "spec.prefill"),
        ({"accelerator": {}, "prefill": {}}, "spec"),
        ({"accelerator": {}, "prefill": {"accelerator": {"count": 2}}}, "spec"),
    ],
)
def test_a_missing_image_is_asked_for_where_it_reaches_no_pool_on_cpus(
    spec: Manifest, section: str
) -> None:
    observed = replace(service_observed(service(spec)), images=Images("e:1", "r:1"))
    refusal = plan_service(observed).refusal
    assert refusal is not None
    assert [part.field for part in refusal.parts or (refusal,)] == [f"{section}.engine.image"]


SCALED: Manifest = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
ON_GPUS: Manifest = {**SCALED, "accelerator": {"count": 2}}


@pytest.mark.parametrize(
    ("scaling", "pool", "field", "allowed"),
    [
        ({}, {}, "", "with spec.autoscaling.minReplicas and maxReplicas"),
        ({"target": {"prefillQueue": 2}}, {}, ".target", "beside spec.autoscaling.minReplicas"),
        (
            {"target": {"prefillQueue": 2}},
            {"replicas": 0},
            ".target",
            "beside spec.autoscaling.minReplicas",
        ),
        ({"gpuBudget": 8}, {"accelerator": {}}, ".gpuBudget", "beside spec.autoscaling.minRepl"),
        ({"gpuBudget": 1}, ON_GPUS, ".gpuBudget", "at least 2: the fewest engines hold 1 x 2"),
        (
            {"provider": "External", "target": {"queueMilliseconds": 1000}},
            SCALED,
            ".target",
            "with provider Internal alone",
        ),
        (
            {"provider": "External", "onMetricsLoss": "Floor"},
            SCALED,
            ".onMetricsLoss",
            "with provider Internal alone",
        ),
    ],
)
def test_autoscaling_that_could_not_be_kept_to_is_refused(
    scaling: Manifest, pool: Manifest, field: str, allowed: str
) -> None:
    spec = pool | {"autoscaling": pool.get("autoscaling", {}) | scaling}
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    found = next(each for each in refusal.parts or (refusal,) if each.reason == "InvalidSpec")
    assert found.field == f"spec.autoscaling{field}"
    assert f"allowed: {allowed}" in found.message


def test_what_is_refused_beside_another_provider_is_named_at_once_as_it_is_written() -> None:
    scaling = {"provider": "External", "gpuBudget": 4, "target": {"prefillQueue": 2}}
    refusal = plan_service(
        service_observed(service({"replicas": 1, "accelerator": {}, "autoscaling": scaling}))
    ).refusal
    assert refusal is not None
    fixed = "beside spec.autoscaling.minReplicas and maxReplicas: no pool is scaled"
    assert [part.message for part in refusal.parts] == [
        f'spec.autoscaling.target: {{"prefillQueue":2}} is not allowed; allowed: {fixed}',
        f'spec.autoscaling.provider: "External" is not allowed; allowed: {fixed}',
        "spec.autoscaling.gpuBudget: 4 is not allowed; allowed: with provider Internal alone: "
        "whoever scales decides",
    ]


@pytest.mark.parametrize("provider", [{}, {"provider": "Internal"}, {"provider": "External"}])
def test_autoscaling_is_carried_out(provider: Manifest) -> None:
    spec = {"autoscaling": SCALED["autoscaling"] | provider}
    assert plan_service(service_observed(service(spec))).refusal is None


def test_the_full_example_is_carried_out() -> None:
    assert plan_service(service_observed(service(FULL_SPEC))).refusal is None
