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
from sluice_contract.config.packing import (
    Packing,
    packing_of,
    quantisation_of,
    rank_counts,
    rank_sizes,
)

MAX_WORD: Final = 128


class PackedPart(ContractModel):
    """What each of several GPUs holds of a model whose quantised matrices stay packed; parts may be
    unequal, and this is the largest."""

    gpus: int = Field(ge=1, description="GPUs that share each layer.")
    bytes: int = Field(ge=0, description="Bytes of packed matrices on each GPU.")
    values: int = Field(
        ge=0, description="Numbers of the other matrices on each GPU, in the engine's dtype."
    )

    def memory_bytes(self, value_bytes: int) -> int:
        """Bytes on each GPU; `value_bytes`: size of a number that is not packed."""
        return self.bytes + self.values * value_bytes


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
    packed_parts: list[PackedPart] | None = Field(
        default=None,
        max_length=MAX_RANKS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="What each GPU holds where quantised matrices stay packed, by how many GPUs "
        "share the layers. Other numbers of GPUs would cut a group of packed numbers.",
    )

    def packed_part(self, gpus: int) -> PackedPart | None:
        """The part of each of several GPUs where matrices stay packed; None: they do not, or so
        many GPUs cannot share them."""
        return next((part for part in self.packed_parts or () if part.gpus == gpus), None)


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
        quantization=_word(quantisation_of(config)),
    )
    try:
        shape = shape_from(config)
    except ConfigError:
        return facts
    return facts.model_copy(
        update={
            "packed_parts": packed_parts(shape, packing_of(config, shape)),
            "layers": shape.layers,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_size": shape.hidden_size,
            "tensor_parallel_sizes": [*shape.rank_counts],
            "context_tokens": shape.context_length_tokens,
            "parameters": min(shape.parameters, MAX_COUNT),
        }
    )


def packed_parts(shape: ModelShape, packing: Packing | None) -> list[PackedPart] | None:
    """`ModelFacts.packed_parts` of a model."""
    if packing is None:
        return None
    parts = ((gpus, rank_sizes(shape, packing, gpus)) for gpus in rank_counts(shape, packing))
    return [
        PackedPart(
            gpus=gpus, bytes=min(own.packed_bytes, MAX_COUNT), values=min(own.values, MAX_COUNT)
        )
        for gpus, own in parts
    ]


def _word(value: object) -> str | None:
    return value[:MAX_WORD] if isinstance(value, str) else None
