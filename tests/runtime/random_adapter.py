"""An adapter of a dummy model, with random numbers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from sluice_runtime.model.files import DUMMIES

RANK = 4


def write_random_adapter(
    folder: Path, seed: int, dummy: str = "qwen3-tiny", **changed: int
) -> Path:
    """Of all matrices but those of experts, so large that every answer is another. `changed`: sizes
    that differ from the dummy's."""
    config = {**DUMMIES[dummy], **changed}
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    shapes = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config["model_type"] == "phi3":
        shapes = {
            name: shape for name, shape in shapes.items() if name[-6:] in ("o_proj", "n_proj")
        }
        shapes["self_attn.qkv_proj"] = (q_size + 2 * kv_size, hidden)
    if config["model_type"] in ("phi3", "glm4"):
        shapes = {
            name: shape
            for name, shape in shapes.items()
            if "gate" not in name and ".up" not in name
        }
        shapes["mlp.gate_up_proj"] = (2 * inner, hidden)
    if "num_experts" in config or "num_local_experts" in config:
        shapes = {name: shape for name, shape in shapes.items() if name.startswith("self_attn")}
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (out, width) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(RANK, width, generator=draw) * 0.1
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(out, RANK, generator=draw) * 0.1
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
