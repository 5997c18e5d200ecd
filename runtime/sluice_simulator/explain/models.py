"""The shape of a model: from its config.json, or of well-known ones by name.

Knows dense decoders (Qwen3, Llama) with grouped attention; nothing of devices. The table's numbers
are those of each model's config.json on Hugging Face.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.config.supported import ARCHITECTURES, QUANTISATIONS

BYTES: Final = 2
"""Of a weight, and of a number in the KV cache: bfloat16."""


@dataclass(frozen=True)
class ModelShape:
    """What decides how long a step takes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context_tokens: int
    kv_number_bytes: int = BYTES
    """Of a number of keys and values."""

    @property
    def layer_parameters(self) -> int:
        """Of all layers: attention and a gated MLP."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> float:
        """Read in each step: layers, and the matrix of the logits."""
        return float(BYTES * (self.layer_parameters + self.hidden * self.vocabulary))

    @property
    def token_flop(self) -> float:
        """Of a prompt token, without attention; logits are for the last one alone."""
        return float(2 * self.layer_parameters)

    @property
    def pair_flop(self) -> float:
        """Of a token and one that it attends to: scores, and values."""
        return float(4 * self.layers * self.heads * self.head_dim)

    @property
    def kv_bytes(self) -> int:
        """Of a token: keys and values."""
        return 2 * self.kv_number_bytes * self.layers * self.kv_heads * self.head_dim


def _qwen3(size: str, layers: int, hidden: int, heads: int, intermediate: int) -> ModelShape:
    return ModelShape(f"Qwen3-{size}", layers, hidden, heads, 8, 128, intermediate, 151_936, 40_960)


def _llama(size: str, layers: int, hidden: int, heads: int, intermediate: int) -> ModelShape:
    dim = hidden // heads
    return ModelShape(
        f"Llama-3-{size}", layers, hidden, heads, 8, dim, intermediate, 128_256, 131_072
    )


KNOWN: Final = (
    _qwen3("0.6B", 28, 1024, 16, 3072),
    _qwen3("1.7B", 28, 2048, 16, 6144),
    _qwen3("4B", 36, 2560, 32, 9728),
    _qwen3("8B", 36, 4096, 32, 12_288),
    _qwen3("14B", 40, 5120, 40, 17_408),
    _qwen3("32B", 64, 5120, 64, 25_600),
    _llama("1B", 16, 2048, 32, 8192),
    _llama("3B", 28, 3072, 24, 8192),
    _llama("8B", 32, 4096, 32, 14_336),
    _llama("70B", 80, 8192, 64, 28_672),
)


def known_shape(names: Iterable[str]) -> ModelShape | None:
    """The well-known model that one of the names has in it: family, and size."""
    for name in names:
        plain = re.sub(r"[^a-z0-9.]", "", name.casefold())
        for shape in KNOWN:
            family, _, size = shape.name.casefold().rpartition("-")
            pattern = rf"{family.replace('-', '')}(\.\d)?{re.escape(size)}(?![0-9])"
            if re.search(pattern, plain):
                return shape
    return None


def shape_from(text: str) -> ModelShape:
    """The shape in a config.json.

    Raises:
        ValueError: it is no JSON object, or lacks a key; the message names the key.
    """
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("config.json: allowed is a JSON object")
    _refuse_what_no_engine_loads(config)
    for key in ("num_experts", "num_local_experts"):
        if value := config.get(key):
            raise ValueError(f"config.json: {key}: {value!r} is not allowed; allowed: no experts")
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    return ModelShape(
        name=str(config.get("_name_or_path") or config.get("model_type") or "model"),
        layers=_number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", heads),
        head_dim=_number(config, "head_dim", hidden // heads),
        intermediate=_number(config, "intermediate_size"),
        vocabulary=_number(config, "vocab_size"),
        context_tokens=_number(config, "max_position_embeddings"),
    )


def _refuse_what_no_engine_loads(config: dict[str, Any]) -> None:
    for name in config.get("architectures") or ():
        if name not in ARCHITECTURES:
            allowed = ", ".join(ARCHITECTURES)
            raise ValueError(f"config.json: architectures: {name!r}; allowed: {allowed}")
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method not in (None, *QUANTISATIONS):
        allowed = ", ".join(QUANTISATIONS)
        raise ValueError(f"config.json: quant_method: {method!r}; allowed: {allowed}")


def _number(config: dict[str, Any], key: str, otherwise: int | None = None) -> int:
    value = config.get(key) or otherwise
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {key}: {value!r} is not allowed; allowed: an integer of 1+")
    return value
