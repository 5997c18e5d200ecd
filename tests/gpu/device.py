"""This machine's GPU, and models whose heads its attention kernels are made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

LARGER: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.12,
    "tie_word_embeddings": True,
}
HEADS = {
    "group4-dim128": (8, 128),
    "group2-dim64": (4, 64),
    "windows-dim256": (4, 256),
    "sinks-dim64": (4, 64),
    "sinks-dim64-mxfp4": (4, 64),
    "experts-dim128-fp8": (8, 128),
}
"""Query heads and their dimension; tensor cores decode where four or more share a key head, and in
layers with a window or sinks."""


def accelerator() -> dict[str, Any]:
    """As engine.json has it."""
    found = torch.cuda.get_device_properties(0)
    product = str(found.name).replace(" ", "-")
    return {"product": product, "memory_mib": found.total_memory >> 20, "count": 1}


def write_model(folder: Path, heads: str, dtype: torch.dtype) -> Path:
    """Random weights, saved as transformers does. All experts compute all tokens: by rounding a
    router would choose others."""
    import transformers

    torch.manual_seed(7)
    count, dim = HEADS[heads]
    sizes: dict[str, Any] = {**LARGER, "num_attention_heads": count, "head_dim": dim}
    model: Any
    if heads.startswith("windows"):
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        sizes |= {"sliding_window": 24, "layer_types": kinds, "query_pre_attn_scalar": dim}
        model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes))
    elif heads.startswith("sinks"):
        # With weights as large as those above, transformers itself differs by 7 % in bfloat16.
        sizes |= {"sliding_window": 24, "num_local_experts": 3, "num_experts_per_tok": 3}
        sizes |= {"initializer_range": 0.06}
        model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes))
    elif heads.startswith("experts"):
        sizes |= {"num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 384}
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    model.to(dtype).save_pretrained(folder)
    return folder
