"""Admission refuses what the plan would refuse, as far as that is certain without the cluster."""

from __future__ import annotations

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images
from sluice_operator.service.plan import plan_service
from sluice_operator.service.resolve.spec_errors import spec_errors

from tests.operator.examples import FULL_SPEC, IMAGES, service, service_observed

GPU = {"accelerator": {"count": 1}}


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
