"""What of an adapter is refused, in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.adapters import AdapterBank, MatrixPlace, SlotShape
from sluice_runtime.model.adapters import (
    adapter_folder,
    adapter_key,
    read_adapter,
    read_adapter_config,
)
from sluice_runtime.model.shard import Shard

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "modules_to_save": None}
PREFIX = "base_model.model.model.layers.0."


def tensors(**changed: Any) -> dict[str, torch.Tensor]:
    """Of a query projection [8, 4] and of an output projection [4, 8]."""
    found = {
        "self_attn.q_proj.lora_A": torch.randn(2, 4),
        "self_attn.q_proj.lora_B": torch.randn(8, 2),
        "self_attn.o_proj.lora_A": torch.randn(2, 8),
        "self_attn.o_proj.lora_B": torch.randn(4, 2),
    }
    return {f"{PREFIX}{name}.weight": tensor for name, tensor in (found | changed).items()}


def written(folder: Path, config: dict[str, Any], **changed: Any) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    left = {name: tensor for name, tensor in tensors(**changed).items() if tensor is not None}
    save_file(left, folder / "adapter_model.safetensors")
    return folder


def bank_of(ranks: int = 1) -> AdapterBank:
    bank = AdapterBank(SlotShape(1, 4, 16), torch.float32, torch.device("cpu"))
    bank.adapted(lambda x: x, 0, {"query": torch.empty(8 // ranks, 4)})
    bank.adapted(lambda x: x, 0, {"output": torch.empty(4, 8 // ranks)})
    return bank


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("peft_type", "IA3", "peft_type: 'IA3' is not allowed; allowed: absent or 'LORA'"),
        ("use_dora", True, "use_dora: True is not allowed; allowed: absent or False"),
        ("bias", "all", "bias: 'all' is not allowed"),
        ("modules_to_save", ["lm_head"], "modules_to_save: ['lm_head'] is not allowed"),
        ("rank_pattern", {"q_proj": 4}, "rank_pattern: {'q_proj': 4} is not allowed"),
        ("init_lora_weights", "pissa", "init_lora_weights: 'pissa' is not allowed"),
        ("r", 0, "r: 0 is not allowed; allowed: a number above 0"),
        ("r", 2.5, "r: 2.5 is not allowed; allowed: a whole number from 1"),
        ("lora_alpha", None, "lora_alpha: None is not allowed"),
        ("r", 8, "r: 8 is not allowed; allowed: at most 4 (maxLoraRank)"),
    ],
)
def test_a_key_that_changes_what_it_computes(
    tmp_path: Path, key: str, value: object, words: str
) -> None:
    folder = written(tmp_path, {key: value})
    with pytest.raises(ModelLoadError) as refused:
        read_adapter(folder, bank_of(), Shard(), 8)
    assert f"adapters: {folder}/adapter_config.json: {words}" in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mlp.down_proj.lora_A": torch.ones(2, 8)}, "down_proj.lora_A.weight: the model has no"),
        (
            {"mlp.experts.0.up_proj.lora_A": torch.ones(2, 4)},
            "up_proj.lora_A.weight is not allowed",
        ),
        ({"self_attn.q_norm.lora_A": torch.ones(2, 4)}, "q_norm.lora_A.weight is not allowed"),
        ({"self_attn.q_proj.lora_B": None}, "q_proj.lora_B.weight is missing"),
        ({"self_attn.q_proj.lora_A": None}, "q_proj.lora_A.weight is missing"),
        ({"self_attn.q_proj.lora_B": torch.ones(9, 2)}, "has shape [9, 2]; the model and r want"),
        ({"self_attn.q_proj.lora_A": torch.full((2, 4), torch.nan)}, "is not finite"),
    ],
)
def test_a_tensor_that_the_model_has_no_place_for(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    folder = written(tmp_path, {}, **changed)
    with pytest.raises(ModelLoadError) as refused:
        read_adapter(folder, bank_of(), Shard(), 8)
    assert f"adapters: {folder}/adapter_model.safetensors: tensor " in str(refused.value)
    assert words in str(refused.value)


def test_ranks_have_parts_that_make_the_whole(tmp_path: Path) -> None:
    folder = written(tmp_path, {})
    query, output = MatrixPlace(0, "query"), MatrixPlace(0, "output")
    whole = read_adapter(folder, bank_of(), Shard(), 8).pairs
    parts = [read_adapter(folder, bank_of(2), Shard(rank, 2), 8).pairs for rank in range(2)]
    assert torch.equal(torch.cat([part[query].b for part in parts]), whole[query].b)
    assert torch.equal(torch.cat([part[output].a for part in parts], 1), whole[output].a)
    assert all(torch.equal(part[query].a, whole[query].a) for part in parts)
    assert all(torch.equal(part[output].b, whole[output].b) for part in parts)


def test_ranks_with_unequal_parts_have_parts_that_make_the_whole(tmp_path: Path) -> None:
    """Three groups of two inner values on two ranks."""
    pairs = {"up": (torch.randn(2, 4), torch.randn(6, 2)),
             "down": (torch.randn(2, 6), torch.randn(4, 2))}  # fmt: skip
    changed = {
        f"mlp.{name}_proj.lora_{side}": factor
        for name, pair in pairs.items()
        for side, factor in zip("AB", pair, strict=True)
    }
    folder = written(tmp_path, {}, **changed)
    parts = []
    for rank, size in enumerate((4, 2)):
        bank = bank_of(2)
        bank.adapted(lambda x: x, 0, {"up": torch.empty(size, 4)})
        bank.adapted(lambda x: x, 0, {"down": torch.empty(4, size)})
        parts.append(read_adapter(folder, bank, Shard(rank, 2, unit=2), 6).pairs)
    up, down = MatrixPlace(0, "up"), MatrixPlace(0, "down")
    assert torch.equal(torch.cat([part[up].b for part in parts]), 3 * pairs["up"][1])
    assert torch.equal(torch.cat([part[down].a for part in parts], 1), pairs["down"][0])


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_refuses_an_inner_size_that_is_not_the_models(tmp_path: Path, rank: int) -> None:
    """Of five groups of two the first rank would have three, as of the six that the model has."""
    pair = {"lora_A": torch.ones(2, 10), "lora_B": torch.ones(4, 2)}
    folder = written(tmp_path, {}, **{f"mlp.down_proj.{side}": pair[side] for side in pair})
    bank = bank_of(2)
    bank.adapted(lambda x: x, 0, {"down": torch.empty(4, 6)})
    wrong = r"has shape \[2, 10\]; the model and r want \[2, 12\]"
    with pytest.raises(ModelLoadError, match=wrong):
        read_adapter(folder, bank, Shard(rank, 2, unit=2), 12)


def test_rslora_divides_by_the_root(tmp_path: Path) -> None:
    assert read_adapter_config(written(tmp_path, {})).scale == 3
    rooted = written(tmp_path, {"use_rslora": True, "r": 4})
    assert read_adapter_config(rooted).scale == 3


def test_keys_tell_files_apart(tmp_path: Path) -> None:
    (first, second) = (tmp_path / "a", tmp_path / "b")
    first.mkdir()
    second.mkdir()
    torch.manual_seed(0)
    written(first, {})
    torch.manual_seed(0)
    written(second, {})
    key = adapter_key("poems", first)
    assert key == adapter_key("poems", second)
    assert key.startswith("poems@")
    assert key != adapter_key("prose", first)
    written(second, {"lora_alpha": 7})
    assert key != adapter_key("poems", second)


def test_weights_that_are_none_are_named(tmp_path: Path) -> None:
    written(tmp_path, {})
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(ModelLoadError, match=r"is a pointer of Git LFS \(66 bytes\)"):
        read_adapter(tmp_path, bank_of(), Shard(), 8)
    weights.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match=r"adapter_model\.bin is not read; allowed: adapter_m"):
        adapter_key("poems", tmp_path)


@pytest.mark.parametrize("uri", ["hf://org/name", "/nowhere", "file:///nowhere"])
def test_where_there_is_no_folder(uri: str) -> None:
    with pytest.raises(ModelLoadError, match=f"adapters: uri: '{uri}' is no folder"):
        adapter_folder(uri)
