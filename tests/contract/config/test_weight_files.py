"""Of a folder's names it is said which weights are there, and what no engine reads."""

from __future__ import annotations

import pytest
from sluice_contract.config.weight_files import (
    INDEX,
    SINGLE,
    absent_weights,
    index_flaw,
    unread_weights,
)

SHARDS = [f"model-0000{number}-of-00005.safetensors" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["config.json", "README.md", "training_args.bin", "tokenizer.model"], ""),
        ([SINGLE, "pytorch_model.bin"], ""),
        (["model.bin.index.json", "pytorch_model.bin.index.json"], ""),
        (SHARDS[:2], f"{INDEX} is missing, which says what is in {SHARDS[0]}, {SHARDS[1]}"),
        (SHARDS, f"{INDEX} is missing, which says what is in {', '.join(SHARDS[:3])} and 2 more"),
        (["model.fp16.safetensors"], f"model.fp16.safetensors is not read; allowed: {SINGLE}"),
    ],
)
def test_what_stands_in_the_place_of_weights(names: list[str], text: str) -> None:
    assert absent_weights(names) == text


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "a.gguf", "flax_model.msgpack",
     "tf_model.h5", "model.onnx", "model.pt", "consolidated.00.pth", "model.fp16.safetensors"],
)  # fmt: skip
def test_other_formats_are_named(name: str) -> None:
    assert unread_weights([name]).startswith(f"{name} is not read; allowed: {SINGLE}")


def test_an_adapter_has_another_file() -> None:
    names = ["adapter_config.json", "adapter_model.bin"]
    allowed = "adapter_model.safetensors"
    assert f"adapter_model.bin is not read; allowed: {allowed}" in unread_weights(names, allowed)
    assert unread_weights([allowed], allowed) == ""


def test_an_index_names_what_is_there() -> None:
    places = dict(enumerate(SHARDS))
    named = {str(key): file for key, file in places.items()}
    assert index_flaw(named, SHARDS) == ""
    assert index_flaw(named | {"x": 7}, SHARDS) == "", "what is no name is refused elsewhere"
    assert index_flaw({"a": SINGLE}, [SINGLE]) == ""
    assert index_flaw({"a": SINGLE}, []) == f"{SINGLE} is missing; {INDEX} names it"
    assert index_flaw(named, SHARDS[1:]) == f"{SHARDS[0]} is missing; {INDEX} names it"
    assert index_flaw(named, SHARDS[2:]).endswith(f"are missing; {INDEX} names them")
    assert f"{INDEX} is stale; allowed: " in index_flaw(named, [SINGLE])
