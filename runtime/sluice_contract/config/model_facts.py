"""Facts about a model from a hub and from config.json, before its weights are downloaded.

The fetcher writes them into its termination message; the operator shows them in status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from sluice_contract.base import ConfigError, ContractModel
from sluice_contract.config.model_shape import (
    MAX_COUNT,
    MAX_RANKS,
    ModelShape,
    architecture_of,
    language_model,
    shape_from,
)
from sluice_contract.config.packing import QUANTISATION_KEYS, Packing, packing_of, weight_bytes

MAX_WORD: Final = 128
PLAIN_BYTES: Final = 2
"""Bytes of a number that is not quantised."""


class ModelFacts(ContractModel):
    """Facts from config.json; None for facts that it does not state."""

    architecture: str | None = Field(
        default=None, max_length=MAX_WORD, description="Architecture, e.g. Qwen3ForCausalLM."
    )
    layers: int | None = Field(default=None, ge=1, description="Layers.")
    kv_heads: int | None = Field(default=None, ge=1, description="Heads of keys and values.")
    head_dim: int | None = Field(default=None, ge=1, description="Numbers in one head.")
    hidden_size: int | None = Field(
        default=None, ge=1, description="Numbers of a token between layers."
    )
    tensor_parallel_sizes: list[int] | None = Field(
        default=None,
        max_length=MAX_RANKS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Numbers of GPUs that can share each layer.",
    )
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
    packed_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes of all matrices on GPUs where quantised ones stay packed.",
    )
    packed_parts: int | None = Field(
        default=None,
        ge=1,
        description="Equal parts that packed matrices have; the number of GPUs divides it.",
    )


class ResolvedModel(ModelFacts):
    """A resolved revision, with the model's facts."""

    commit: str = Field(pattern="^[0-9a-f]{40}$", description="Commit that the revision is.")
    bytes: int = Field(ge=0, description="Size of the files that an engine reads.")


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """Facts in a config.json of transformers' form; for a model with several parts, facts of its
    language model. If a size is invalid, all sizes are left out: the engine will refuse them."""
    config = language_model(config)
    facts = ModelFacts(
        architecture=_word(architecture_of(config)),
        dtype=_word(config.get("dtype") or config.get("torch_dtype")),
        quantization=_quantization(config),
    )
    try:
        shape = shape_from(config)
    except ConfigError:
        return facts
    return facts.model_copy(
        update={
            **packed_facts(shape, packing_of(config, shape)),
            "layers": shape.layers,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_size": shape.hidden_size,
            "tensor_parallel_sizes": [*shape.rank_counts],
            "context_tokens": shape.context_length_tokens,
            "parameters": min(shape.parameters, MAX_COUNT),
        }
    )


def packed_facts(shape: ModelShape, packing: Packing | None) -> Mapping[str, int]:
    """Facts about packed matrices, beside 16-bit ones that are not quantised."""
    if packing is None:
        return {}
    size = min(weight_bytes(shape, packing, PLAIN_BYTES), MAX_COUNT)
    return {"packed_bytes": size, "packed_parts": packing.parts}


def _quantization(config: Mapping[str, Any]) -> str | None:
    for key in QUANTISATION_KEYS:
        if value := config.get(key):
            method = value.get("quant_method") if isinstance(value, dict) else None
            return _word(method) or key
    return None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_WORD else None
