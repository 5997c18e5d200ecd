"""Specs that the plan refuses, by field; admission does, as far as that is certain without the
cluster."""

from __future__ import annotations

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images
from sluice_operator.service.plan import plan_service
from sluice_operator.service.resolve.spec_errors import spec_errors

from tests.operator.examples import FULL_SPEC, IMAGES, service, service_observed

GPU = {"accelerator": {"count": 1}}
PROMISE = {"itlMilliseconds": 50}
APART = "{0} in pool prefill is not allowed beside {1} in pool"


def found(spec: Manifest, images: Images = IMAGES) -> list[str]:
    return [refusal.message for refusal in spec_errors(images, service(spec))]


@pytest.mark.parametrize("spec", [{}, FULL_SPEC | {"engine": {}}, GPU, {"prefill": {}}])
def test_a_good_spec_has_no_errors(spec: Manifest) -> None:
    assert found(spec) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"tensorParallelSize": 2}, "slo": {"percentile": 90}},
        {"slo": {"itlMilliseconds": 50}, "engine": {"mixedChunk": False, "kvPoolTokens": 1000}},
        {"mode": "Both", "engine": {"dtype": "int3"}},
        {"autoscaling": {"gpuBudget": 1}},
        {"model": {"uri": "dummy://tiny", "adapters": [{"name": "tiny", "uri": "pvc://a/b"}]}},
    ],
)
def test_the_errors_are_those_of_the_plan(spec: Manifest) -> None:
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    assert found(spec) == [each.message for each in refusal.parts or (refusal,)]


def test_sizes_that_only_nodes_tell_refuse_nothing() -> None:
    """A GPU of unknown memory has chunks of 4096 tokens, one with 80 GiB of 8192."""
    spec = GPU | {"engine": {"minPrefillTokens": 6000}}
    assert plan_service(service_observed(service(spec))).refusal is not None
    assert found(spec) == []
    assert found(spec | {"engine": {"minPrefillTokens": 6000, "chunkSize": 4096}}) != []
    assert found(GPU | {"engine": {"minPrefillTokens": 6000, "maxPrefillTokens": 5000}}) != []


@pytest.mark.parametrize("uri", ["hf://org/name", "oci://registry.example/model:1"])
def test_a_model_that_nobody_can_bring_is_refused(uri: str) -> None:
    spec = {"model": {"uri": uri}}
    assert found(spec) == []
    (message,) = found(spec, Images("engine:1", "router:1"))
    assert message.startswith("spec.model.uri: ")


@pytest.mark.parametrize("spec", [{"engine": None}, {"engine": {"dtype": None}, "slo": None}])
def test_null_is_taken_for_left_out(spec: Manifest) -> None:
    assert found(spec) == []
    (message,) = found(spec | {"prefill": None})
    assert "write `prefill: {}`, or leave it out" in message


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"engine": {"dtype": "int3"}}, "engine.dtype", "int3"),
        ({"engine": {"pageSize": 1024}}, "engine.chunkSize", "at least pageSize (1024)"),
        (
            {"engine": {"tensorParallelSize": 2}, "accelerator": {"count": 4}},
            "engine.tensorParallelSize",
            "spec.accelerator.count (4)",
        ),
        ({"slo": PROMISE, "engine": {"chunkSize": -1}}, "engine.chunkSize", "slo.itlMilliseconds"),
        (
            {"slo": PROMISE, "engine": {"mixedChunk": False}},
            "engine.mixedChunk",
            "slo.itlMilliseconds",
        ),
        (
            {"prefill": {"engine": {"maxPrefillTokens": 4}}},
            "prefill.engine.maxPrefillTokens",
            "4",
        ),
        *(
            ({"prefill": {"engine": {key: own}}}, f"prefill.engine.{key}", APART.format(*values))
            for key, own, values in (
                ("dtype", "float32", ('"float32"', '"auto"')),
                ("pageSize", 8, (8, 16)),
            )
        ),
        *(
            ({"tracing": {"endpoint": endpoint}}, "tracing.endpoint", "spec.tracing.endpoint: ")
            for endpoint in ("http://h:99999", "http://[1:2]:3", "http://a\u2100b")
        ),
    ],
)
def test_a_refusal_of_the_plan_names_the_field(spec: Manifest, field: str, says: str) -> None:
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    parts = {part.field: part for part in refusal.parts or (refusal,)}
    assert parts[f"spec.{field}"].reason == "InvalidSpec"
    assert says in parts[f"spec.{field}"].message


@pytest.mark.parametrize("engine", [{"chunkSize": -1}, {"mixedChunk": False}])
def test_settings_that_keep_no_promise_are_taken_where_none_is_made(engine: Manifest) -> None:
    assert plan_service(service_observed(service({"engine": engine}))).refusal is None
