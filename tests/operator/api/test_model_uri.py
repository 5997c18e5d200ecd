"""What an engine is told about its model."""

from __future__ import annotations

import pytest
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.model_uri import ModelSource, model_source


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


def test_a_given_name_wins() -> None:
    assert model_source(ModelSpec(uri="dummy://tiny", name="big")).served_name == "big"
