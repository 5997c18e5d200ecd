"""What a hub and its config.json say of a model before anything is downloaded.

The fetcher leaves it as the message of its termination, the operator shows it in status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from sluice_contract.base import ContractModel

MAX_WORD: Final = 128
MAX_COUNT: Final = 1 << 53
"""Larger numbers are not kept exactly by every reader of JSON."""

_GEMMA3: Final = {
    "head_dim": 256,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "vocab_size": 262_208,
}
SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Glm4ForCausalLM": {"head_dim": 128, "num_key_value_heads": 2},
    "GlmForCausalLM": {"head_dim": 128, "num_key_value_heads": 2},
    "GptOssForCausalLM": {"head_dim": 64, "num_key_value_heads": 8},
    "MistralForCausalLM": {"num_key_value_heads": 8},
    "MixtralForCausalLM": {"num_key_value_heads": 8, "num_local_experts": 8},
    "Qwen3ForCausalLM": {"head_dim": 128},
    "Qwen3MoeForCausalLM": {"num_key_value_heads": 4},
}
"""By architecture: what keys that config.json leaves out mean to transformers, and so to the
engine, which reads this table too. A key that is null is not left out."""


class ModelFacts(ContractModel):
    """From config.json; None where it does not say so."""

    architecture: str | None = Field(
        default=None, max_length=MAX_WORD, description="Architecture, e.g. Qwen3ForCausalLM."
    )
    layers: int | None = Field(default=None, ge=1, description="Layers.")
    kv_heads: int | None = Field(default=None, ge=1, description="Heads of keys and values.")
    head_dim: int | None = Field(default=None, ge=1, description="Numbers in one head.")
    dtype: str | None = Field(
        default=None, max_length=MAX_WORD, description="Type of the weights, e.g. bfloat16."
    )
    context_tokens: int | None = Field(
        default=None, ge=1, description="Positions that the model was made for."
    )
    quantization: str | None = Field(
        default=None, max_length=MAX_WORD, description="How weights are quantised, e.g. gptq."
    )
    parameters: int | None = Field(default=None, ge=1, description="Numbers of all matrices.")


class ResolvedModel(ModelFacts):
    """A revision, resolved."""

    commit: str = Field(pattern="^[0-9a-f]{40}$", description="Commit that the revision is.")
    bytes: int = Field(ge=0, description="Size of the files that an engine reads.")


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """The facts in a config.json of transformers' form, of a model of several parts those of its
    language model. What is not as it should be is left to the engine to refuse."""
    if isinstance(text := config.get("text_config"), Mapping):
        own = {key: value for key, value in text.items() if value is not None}
        config = {**config, **own, "architectures": config.get("architectures")}
    named = config.get("architectures")
    architecture = _word(named[0]) if isinstance(named, list) and named else None
    config = {**SIZES.get(architecture or "", {}), **config}
    heads = _count(config.get("num_attention_heads"))
    hidden = _count(config.get("hidden_size"))
    share = _count(hidden // heads) if hidden and heads else None
    kv_heads = _count(config.get("num_key_value_heads")) or heads
    head_dim = _count(config.get("head_dim")) or share
    return ModelFacts(
        architecture=architecture,
        layers=_count(config.get("num_hidden_layers")),
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=_word(config.get("dtype") or config.get("torch_dtype")),
        context_tokens=_count(config.get("max_position_embeddings")),
        quantization=_quantization(config),
        parameters=_parameters(config, (heads or 0) + (kv_heads or 0), head_dim or 0),
    )


def _parameters(config: Mapping[str, Any], heads: int, head_dim: int) -> int | None:
    """Of embeddings, attention and feed-forward parts, where all layers have experts or none.
    `heads`: of queries and of keys."""
    hidden, vocabulary = _count(config.get("hidden_size")), _count(config.get("vocab_size"))
    layers, width = _count(config.get("num_hidden_layers")), _count(config.get("intermediate_size"))
    experts = _count(config.get("num_experts")) or _count(config.get("num_local_experts"))
    # Mixtral's experts are as wide as a feed-forward part is elsewhere.
    inner = (experts or 1) * (
        (experts and _count(config.get("moe_intermediate_size"))) or width or 0
    )
    if not (hidden and vocabulary and layers and inner and heads and head_dim):
        return None
    tables = 1 if config.get("tie_word_embeddings") else 2
    layer = 2 * heads * head_dim + 3 * inner
    return _count(hidden * (tables * vocabulary + layers * layer))


def _quantization(config: Mapping[str, Any]) -> str | None:
    for key in ("quantization_config", "compression_config"):
        if value := config.get(key):
            method = value.get("quant_method") if isinstance(value, dict) else None
            return _word(method) or key
    return None


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value < MAX_COUNT else None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_WORD else None
