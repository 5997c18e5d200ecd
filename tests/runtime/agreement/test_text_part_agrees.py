"""Of a checkpoint of several parts the language model answers as transformers' does to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sluice_kernels.packed import PackedMatrix
from sluice_runtime.model import layer_tensors
from sluice_runtime.model.files import resolve
from sluice_runtime.model.load import load_model

from tests.runtime.agreement.cases import Case, check, random_requests
from tests.runtime.agreement.oracle import FAMILIES, SMALL, Oracle
from tests.runtime.model.held import reached
from tests.runtime.model.quantised_checkpoints import write_quantised

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("transformers")]

VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
NAMES = {"language_model.": "language_model.", "model.language_model.": "language_model.model."}
"""How names of the language model's tensors begin, and how transformers writes that."""


def write_whole_model(folder: Path, **changed: int) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(7)
    text = SMALL | FAMILIES["gemma3_text"] | changed
    config = Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)
    model: Any = Gemma3ForConditionalGeneration(config)
    for name, tensor in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    model.save_pretrained(folder)


@pytest.mark.parametrize("begin", NAMES)
def test_the_language_model_of_a_whole_model_agrees(tmp_path: Path, begin: str) -> None:
    whole, renamed = tmp_path / "whole", tmp_path / "renamed"
    write_whole_model(whole)
    renamed.mkdir()
    tensors = load_file(whole / "model.safetensors")
    assert any(name.startswith("vision_tower.") for name in tensors)
    save_file(
        {name.replace(NAMES[begin], begin): tensor for name, tensor in tensors.items()},
        renamed / "model.safetensors",
    )
    config = json.loads((whole / "config.json").read_text())
    (renamed / "config.json").write_text(json.dumps(config))
    case = Case("gemma3_text", chunk_size=32)
    check(case, renamed, Oracle(whole), random_requests(16, 120, 24))


def test_matrices_of_the_language_model_stay_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_tensors, "can_pack", lambda device: True)
    whole, quantised = tmp_path / "whole", tmp_path / "quantised"
    write_whole_model(whole, hidden_size=64)
    quantised.mkdir()
    write_quantised(whole, "compressed-channel", quantised)
    decoder = load_model(resolve(str(quantised)), "float32", 0, "torch")
    # Queries, keys and values are joined, gate and up as well.
    assert len([*reached(decoder, PackedMatrix)]) == 4 * decoder.spec.layers
