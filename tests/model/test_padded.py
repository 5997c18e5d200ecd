"""Weights that are longer and mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from e2e.images.catalog import ROOT
from e2e.stories.padded import WEIGHTS, padded_model

MODEL = ROOT / "e2e/model/sluice-tiny"


@pytest.mark.parametrize("more_bytes", [1, 1_500_000])
def test_padded_weights_have_the_same_tensors(tmp_path: Path, more_bytes: int) -> None:
    files = padded_model(MODEL, more_bytes)
    path = tmp_path / WEIGHTS
    path.write_bytes(files[WEIGHTS])
    found, expected = load_file(path), load_file(MODEL / WEIGHTS)
    assert len(found.pop("padding")) == more_bytes
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_without_more_bytes_the_files_are_the_folders() -> None:
    assert padded_model(MODEL, 0) == {file.name: file.read_bytes() for file in MODEL.iterdir()}
