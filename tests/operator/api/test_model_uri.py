"""What an engine is told about its model."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.config.engine import parse_engine_config
from sluice_operator.api.engine import MAX_PART, ModelSpec
from sluice_operator.api.model_uri import CLAIM_MOUNT, ModelSource, model_source
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.plan import plan_service

from tests.examples import examples
from tests.operator.examples import service, service_observed

PARTS = st.one_of(
    st.sampled_from(["", ".", "..", "a", "a" * MAX_PART, "a" * (MAX_PART + 1), "a:b", "\0"]),
    st.text(max_size=20),
)
URIS = st.builds(
    lambda scheme, parts: scheme + "/".join(parts),
    st.sampled_from(["file:///", "pvc://", "dummy://", "hf://", "oci://", "s3://", ""]),
    st.lists(PARTS, max_size=5),
).filter(lambda uri: len(uri) <= 1024)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("dummy://tiny", ModelSource("dummy://tiny", "tiny")),
        ("file:///models/a/b", ModelSource("file:///models/a/b", "b")),
        ("pvc://claim/a/b", ModelSource("file:///mnt/model/a/b", "b", "claim")),
        ("pvc://claim/a/", ModelSource("file:///mnt/model/a", "a", "claim")),
        ("oci://r.example:5000/a/b:1@sha256:" + "0" * 64, ModelSource("file:///mnt/model", "b")),
        ("pvc://claim", ModelSource("file:///mnt/model", "claim", "claim")),
    ],
)
def test_source_of_a_model(uri: str, source: ModelSource) -> None:
    assert model_source(ModelSpec(uri=uri)) == source


@pytest.mark.parametrize("key", ["model", "adapter"])
def test_a_path_may_be_as_long_as_its_field(key: str) -> None:
    """Where the claim is mounted is longer than what names it."""
    uri = ("pvc://c/" + "/".join(["a" * 200] * 6))[:1024]
    model: Manifest = {"uri": uri if key == "model" else "dummy://tiny"}
    if key == "adapter":
        model["adapters"] = [{"name": "a", "uri": uri}]
    assert plan_service(service_observed(service({"model": model}))).refusal is None


def test_a_given_name_wins() -> None:
    assert model_source(ModelSpec(uri="dummy://tiny", name="big")).served_name == "big"


@given(URIS)
@examples(150)
def test_a_uri_is_refused_or_leads_the_engine_to_where_the_model_is(uri: str) -> None:
    plan = plan_service(service_observed(service({"model": {"uri": uri}})))
    if plan.refusal is not None:
        assert plan.refusal.field.startswith("spec.model")
        return
    assert plan.spec is not None
    if uri.startswith("hf://"):
        return  # nothing is made before the revision is known
    (pool,) = plan.pools
    told = parse_engine_config(pool.config_map["data"]["engine.json"]).model.uri
    scheme, _, path = told.partition("://")
    assert scheme in ("file", "dummy")
    assert ".." not in PurePosixPath(path).parts
    if uri.startswith("pvc://"):
        assert PurePosixPath(path).is_relative_to(CLAIM_MOUNT)
