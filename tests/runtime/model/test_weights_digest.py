"""The digest of a model's weights: the same for copies, another for other weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model import weights_digest as digests
from sluice_runtime.model.files import DUMMIES, resolve
from sluice_runtime.model.weights_digest import weights_digest

SINGLE = "model.safetensors"


def save(folder: Path, seed: int = 0) -> Path:
    """A model whose first and last tensors do not depend on the seed."""
    source = torch.Generator().manual_seed(seed)
    tensors = {"a.first": torch.ones(50_000), "z.last": torch.ones(50_000)}
    tensors |= {f"middle.{n}": torch.randn(50_000, generator=source) for n in range(4)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(DUMMIES["qwen3-tiny"]))
    save_file(tensors, folder / SINGLE)
    return folder


def digest(folder: Path) -> str:
    return weights_digest(resolve(str(folder)), 0, "float32")


def change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))


def test_copies_have_one_digest_wherever_and_whenever_they_were_made(tmp_path: Path) -> None:
    folder = save(tmp_path / "one")
    copy = shutil.copytree(folder, tmp_path / "two")
    os.utime(copy / SINGLE, (1, 1))
    (copy / "README.md").write_text("other")
    assert digest(copy) == digest(folder)
    assert len(digest(folder)) == 32


@pytest.mark.parametrize(
    "change",
    [lambda folder: save(folder, seed=1), change_config],
    ids=["tensors in the middle", "config"],
)
def test_a_folder_that_is_written_over_has_another(
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    folder = save(tmp_path / "m")
    before = digest(folder)
    change(folder)
    assert digest(folder) != before


def test_of_many_tensors_some_are_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "m")
    with patch.object(digests, "MAX_TENSORS", 2):
        before = digest(folder)
        save(folder, seed=1)
        assert digest(folder) != before


def test_random_weights_are_told_apart_by_what_they_are_drawn_from() -> None:
    files = resolve("dummy://qwen3-tiny")
    first = weights_digest(files, 0, "float32")
    assert first == weights_digest(files, 0, "float32")
    others = [
        weights_digest(resolve("dummy://llama-tiny"), 0, "float32"),
        weights_digest(files, 1, "float32"),
        weights_digest(files, 0, "bfloat16"),
        weights_digest(files, 0, "float32", "int8"),
    ]
    assert len({first, *others}) == 5


def test_files_that_are_held_in_8_bits_are_another_model(tmp_path: Path) -> None:
    files = resolve(str(save(tmp_path / "m")))
    as_stored, rounded = (weights_digest(files, 0, "float32", held) for held in ("auto", "int8"))
    assert as_stored != rounded


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "m")
    index = {"weight_map": {"a": SINGLE}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / SINGLE).write_bytes(Random(0).randbytes(100))
    with pytest.raises(ModelLoadError, match=f"{SINGLE} is damaged"):
        digest(folder)
    (folder / SINGLE).unlink()
    with pytest.raises(ModelLoadError, match=f"{SINGLE} is missing; .*json names it"):
        digest(folder)
