"""Scales of keys and values are read under every name that tools give them, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.kv.pool import KvScales
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.model.kv_scales import kv_scales
from sluice_runtime.model.shard import Shard
from sluice_runtime.model.weights import Checkpoint
from torch import Tensor

SPEC = spec_from(resolve("dummy://qwen3-tiny").config)
LAYERS, HEADS = SPEC.layers, SPEC.kv_heads
ONE = torch.ones(())


def read(folder: Path, tensors: Mapping[str, Tensor], shard: Shard = Shard()) -> KvScales:  # noqa: B008
    """Of a checkpoint in which every layer has `tensors`."""
    stored = {
        f"model.layers.{layer}.self_attn.{name}": (layer + 1) * tensor
        for layer in range(LAYERS)
        for name, tensor in tensors.items()
    }
    save_file({"other": torch.ones(1), **stored}, folder / "model.safetensors")
    with Checkpoint(folder) as checkpoint:
        scales = kv_scales(SPEC, checkpoint, shard)
        assert [name.split(" ")[0] for name in checkpoint.unread()] == ["other"]
        return scales


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_number_is_that_of_all_heads(
    names: tuple[str, str], dtype: torch.dtype, tmp_path: Path
) -> None:
    keys, values = (torch.tensor([number], dtype=dtype) for number in (0.5, 0.25))
    scales = read(tmp_path, dict(zip(names, (keys, values), strict=True)))
    by_layer = torch.arange(1, LAYERS + 1)[:, None].expand(LAYERS, HEADS)
    assert torch.equal(scales.keys, 0.5 * by_layer)
    assert torch.equal(scales.values, 0.25 * by_layer)
    assert not scales.are_one


def test_one_scale_may_be_for_keys_and_values(tmp_path: Path) -> None:
    scales = read(tmp_path, {"kv_scale": 0.5 * ONE})
    assert torch.equal(scales.keys, scales.values)
    assert scales.keys[1].tolist() == [1.0] * HEADS


@pytest.mark.parametrize("shape", [(HEADS,), (HEADS, 1, 1)])
def test_a_rank_has_those_of_its_heads(shape: tuple[int, ...], tmp_path: Path) -> None:
    by_head = torch.arange(1.0, HEADS + 1).view(shape)
    both = {"k_scale": by_head, "v_scale": 2 * by_head}
    parts = [read(tmp_path, both, Shard(rank, 2)) for rank in range(2)]
    assert torch.cat([part.keys[0] for part in parts]).tolist() == by_head.flatten().tolist()
    assert torch.equal(parts[1].values, 2 * parts[1].keys)


def test_ranks_with_copies_of_a_head_have_its_scale(tmp_path: Path) -> None:
    by_head = torch.arange(1.0, HEADS + 1)
    both = {"k_scale": by_head, "v_scale": 2 * by_head}
    parts = [read(tmp_path, both, Shard(rank, 2 * HEADS, 2)) for rank in range(2 * HEADS)]
    assert [part.keys[0].tolist() for part in parts[:3]] == [[1.0], [1.0], [2.0]]
    assert all(torch.equal(part.values, 2 * part.keys) for part in parts)


def test_without_any_they_are_one(tmp_path: Path) -> None:
    assert read(tmp_path, {}).are_one
    assert kv_scales(SPEC, None, Shard(0, 2)).keys.shape == (LAYERS, HEADS // 2)
    assert kv_scales(SPEC, None, Shard(0, 2 * HEADS, 2)).keys.shape == (LAYERS, 1)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"k_scale": ONE}, "tensor model.layers.0.self_attn.v_scale is missing; allowed: scales"),
        ({"k_scale": torch.ones(3), "v_scale": ONE}, f"has 3 numbers; allowed: 1, or {HEADS}"),
        ({"k_scale": -ONE, "v_scale": ONE}, "self_attn.k_scale has -1.0; allowed: numbers above 0"),
        ({"k_scale": ONE, "v_scale": ONE * float("inf")}, "v_scale has inf; allowed: numbers"),
    ],
)
def test_what_cannot_be_a_scale_is_refused_by_name(
    tensors: dict[str, Tensor], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=told):
        read(tmp_path, tensors)
