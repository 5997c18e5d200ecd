"""Models with EAGLE-3 heads in folders, as the hub has them: random ones, and one that is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]
VOCABULARY: Final = 259
PROPOSED: Final = 120
"""Tokens that a random head proposes from."""
COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 258,
    "torch_dtype": "float32",
}
HEAD: Final[dict[str, Any]] = COMMON | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "draft_vocab_size": PROPOSED,
    "rope_theta": 5e5,
}
TARGETS: Final[Mapping[str, dict[str, Any]]] = {
    "llama3": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 7,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "qwen3": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 8,
        "rope_theta": 1e6,
    },
}


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE)
    return folder


FILE: Final = "model.safetensors"


def random_target(kind: str, seed: int = 3) -> Tensors:
    """Of a config of TARGETS; large enough that attention matters."""
    config, draw = TARGETS[kind], torch.Generator().manual_seed(seed)
    names = {"model.embed_tokens": (VOCABULARY, 64), "lm_head": (VOCABULARY, 64)}
    for index in range(config["num_hidden_layers"]):
        names |= _layer(f"model.layers.{index}", 64)
    tensors = {
        f"{n}.weight": torch.randn(shape, generator=draw) * 0.15 for n, shape in names.items()
    }
    norms = [f"model.layers.{i}.{n}" for i in range(config["num_hidden_layers"]) for n in NORMS]
    tensors |= {f"{n}.weight": 1 + 0.2 * torch.randn(64, generator=draw) for n in norms}
    tensors["model.norm.weight"] = torch.ones(64)
    if kind == "qwen3":
        for i, n in [(i, n) for i in range(8) for n in ("q_norm", "k_norm")]:
            tensors[f"model.layers.{i}.self_attn.{n}.weight"] = torch.ones(16) * 1.5
    return tensors


NORMS: Final = ("input_layernorm", "post_attention_layernorm")


def random_head(seed: int = 4, *, embedding: bool = False) -> Tensors:
    """Of the config HEAD."""
    draw = torch.Generator().manual_seed(seed)
    names = {"fc": (64, 192), "lm_head": (PROPOSED, 64)} | _layer("midlayer", 128)
    tensors = {
        f"{n}.weight": torch.randn(shape, generator=draw) * 0.15 for n, shape in names.items()
    }
    for name in ("norm", *(f"midlayer.{n}" for n in ("hidden_norm", *NORMS))):
        tensors[f"{name}.weight"] = 1 + 0.2 * torch.randn(64, generator=draw)
    known = torch.randperm(VOCABULARY, generator=draw)[:PROPOSED].sort().values
    tensors["d2t"] = known - torch.arange(PROPOSED)
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, known, True)
    if embedding:
        tensors["embed_tokens.weight"] = torch.randn((VOCABULARY, 64), generator=draw)
    return tensors


def _layer(prefix: str, width: int) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}.self_attn.q_proj": (64, width),
        f"{prefix}.self_attn.k_proj": (32, width),
        f"{prefix}.self_attn.v_proj": (32, width),
        f"{prefix}.self_attn.o_proj": (64, 64),
        f"{prefix}.mlp.gate_proj": (96, 64),
        f"{prefix}.mlp.up_proj": (96, 64),
        f"{prefix}.mlp.down_proj": (64, 96),
    }


RIGHT: Final[dict[str, Any]] = COMMON | {"num_key_value_heads": 4, "rope_theta": 1e4}
"""Of a model each of whose tokens depends on the one before alone, and of a head that knows how."""


def right_target(seed: int = 5) -> tuple[dict[str, Any], Tensors]:
    """Its layers add nothing. Embeddings are of the numbers 1 and -1, so that norms leave them."""
    config = TARGETS["llama3"] | RIGHT
    draw = torch.Generator().manual_seed(seed)
    embedding = torch.randint(0, 2, (VOCABULARY, 64), generator=draw) * 2.0 - 1
    embedding[:, 0] = 1  # what the head's queries and keys are made of
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": embedding[torch.randperm(VOCABULARY, generator=draw)] * 0.2,
        "model.norm.weight": torch.ones(64),
    }
    for index in range(config["num_hidden_layers"]):
        tensors |= _still(f"model.layers.{index}", 64)
    return config, tensors


def right_head(target: Tensors) -> tuple[dict[str, Any], Tensors]:
    """Of `right_target`: each position attends to itself alone, and its hidden state becomes the
    embedding of the token after it, whatever it was."""
    eye = torch.eye(64)
    tensors = _still("midlayer", 128) | {
        "fc.weight": torch.cat((eye, torch.zeros(64, 128)), dim=1),
        "midlayer.hidden_norm.weight": torch.ones(64),
        "midlayer.self_attn.v_proj.weight": torch.cat((eye, -eye), dim=1),
        "midlayer.self_attn.o_proj.weight": eye,
        "norm.weight": torch.ones(64),
        "lm_head.weight": target["lm_head.weight"],
    }
    for name in ("q_proj", "k_proj"):
        tensors[f"midlayer.self_attn.{name}.weight"][:, 0] = 16
    return HEAD | RIGHT | {"draft_vocab_size": VOCABULARY}, tensors


def right_pair(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A model, and how its head drafts, which is right."""
    config, tensors = right_target()
    target = write(folder / "target", config, tensors)
    head = write(folder / "head", *right_head(tensors))
    return target, {"method": "Eagle", "tokens": 4, "draft": {"uri": str(head)}}


def _still(prefix: str, width: int) -> Tensors:
    """A layer that adds nothing."""
    shapes = _layer(prefix, width) | {
        f"{prefix}.self_attn.{name}_proj": (64, width) for name in ("k", "v")
    }
    tensors = {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}.{name}.weight": torch.ones(64) for name in NORMS}
