"""The model of an explanation: from its config.json, or a published one by name.

Steps are taken to read all experts, as those of many rows do, and each layer all tokens before one,
also where it has a window. Knows nothing of devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.base import ConfigError
from sluice_contract.config.model_facts import facts_of
from sluice_contract.config.model_shape import ModelShape, language_model, shape_from
from sluice_contract.config.packing import (
    LayerSizes,
    Packing,
    layer_sizes,
    packing_of,
    rank_sizes,
    widest_part,
)
from sluice_contract.config.published_models import published_model
from sluice_contract.config.supported import ARCHITECTURES, QUANTISATIONS, allowed_quantisations

BYTES: Final = 2
"""Size of a weight, or of a number in the KV cache: bfloat16."""


@dataclass(frozen=True)
class ExplainedModel:
    """Properties of a model that decide how long a step takes."""

    name: str
    shape: ModelShape
    kv_number_bytes: int = BYTES
    """Size of a number of keys and values."""
    packing: Packing | None = None
    """Packing of its matrices; None: they have 16 bits."""

    def weight_bytes(self, ranks: int) -> float:
        """Bytes that `ranks` GPUs together read in each step: layers, and the matrix of the
        logits."""
        logits = self.shape.hidden_size * self.shape.vocabulary_size
        layers = layer_sizes(widest_part(self.shape, self.packing, ranks), self.packing)
        return float(ranks * _bytes(layers) + BYTES * logits)

    def held_bytes(self, ranks: int) -> int:
        """Bytes of memory that all weights take on `ranks` GPUs together, if each had what the
        fullest has."""
        return ranks * _bytes(rank_sizes(self.shape, self.packing, ranks))

    @property
    def token_flop(self) -> float:
        """Operations for a prompt token without attention; logits are for the last one alone."""
        return float(2 * self.shape.active_layer_values)

    @property
    def pair_flop(self) -> float:
        """Operations for a token and one that it attends to: scores, and values."""
        return float(4 * self.shape.layers * self.shape.heads * self.shape.head_dim)

    @property
    def kv_bytes(self) -> int:
        """Size of the keys and values of a token."""
        return self.kv_number_bytes * self.shape.kv_values


def _bytes(sizes: LayerSizes) -> int:
    return sizes.packed_bytes + sizes.values * BYTES


def known_model(names: Iterable[str]) -> ExplainedModel | None:
    """The published model that one of the names has in it."""
    model = published_model(names)
    return ExplainedModel(model.name, model.shape, packing=model.packing) if model else None


def model_from(text: str) -> ExplainedModel:
    """The model of a config.json.

    Raises:
        ValueError: it is no JSON object, or lacks a key; the message names the key.
    """
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("config.json: allowed is a JSON object")
    _refuse_what_no_engine_loads(config)
    try:
        shape = shape_from(language_model(config))
        packing = packing_of(language_model(config), shape)
    except ConfigError as error:
        raise ValueError(f"config.json: {error}") from None
    name = str(config.get("_name_or_path") or config.get("model_type") or "model")
    return ExplainedModel(name, shape, packing=packing)


def _refuse_what_no_engine_loads(config: dict[str, Any]) -> None:
    for name in config.get("architectures") or ():
        if name not in ARCHITECTURES:
            allowed = ", ".join(ARCHITECTURES)
            raise ValueError(f"config.json: architectures: {name!r}; allowed: {allowed}")
    method = facts_of(config).quantization
    if method is not None and method not in QUANTISATIONS:
        allowed = allowed_quantisations(method)
        raise ValueError(f"config.json: quant_method: {method!r}; allowed: {allowed}")
