"""Builds a Decoder from a spec and a source of weights. Knows the checkpoint's tensor names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.backend import Backend, choose_backend
from sluice_runtime.layers.linear import Linear, linear
from sluice_runtime.layers.mlp import GatedMlp
from sluice_runtime.layers.norm import HeadNorm
from sluice_runtime.layers.rope import inverse_frequencies
from sluice_runtime.model.decoder import Decoder, DecoderLayer
from sluice_runtime.model.spec import ModelSpec, spec_from
from sluice_runtime.model.weights import RandomWeights, SafetensorsWeights, WeightSource
from sluice_runtime.model_files import ModelFiles

logger = logging.getLogger("sluice.engine")

HARMLESS: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of tensors that need not be read: derived, or tied to the embedding."""


def load_model(files: ModelFiles, dtype: str, seed: int, backend: str | None = None) -> Decoder:
    """The model behind `files`, in `dtype` (`auto`: the checkpoint's).

    `backend` is one of `layers.backend.BACKENDS`; left out, the best there is.

    Raises:
        ModelLoadError: one line with file, tensor, shapes or the key of config.json.
    """
    spec = spec_from(files.config)
    wanted: torch.dtype = getattr(torch, spec.dtype if dtype == "auto" else dtype)
    choice = choose_backend(wanted, backend)
    logger.info("kernels: %s", choice.message)
    if files.folder is None:
        return build_decoder(spec, RandomWeights(seed), wanted, choice.backend)
    with SafetensorsWeights(files.folder) as weights:
        return build_decoder(spec, weights, wanted, choice.backend)


def build_decoder(
    spec: ModelSpec, weights: WeightSource, dtype: torch.dtype, backend: Backend
) -> Decoder:
    """Reads every tensor, joins those that are multiplied together, checks that none is left."""
    reader = _Reader(spec, weights, dtype)
    embedding = reader.matrix("model.embed_tokens.weight", (spec.vocabulary_size, spec.hidden_size))
    layers = tuple(_layer(reader, index) for index in range(spec.layers))
    norm = reader.tensor("model.norm.weight", (spec.hidden_size,))
    head = (
        embedding
        if spec.tied_embeddings
        else reader.matrix("lm_head.weight", (spec.vocabulary_size, spec.hidden_size))
    )
    if left := [name for name in weights.unread() if not name.split(" in ")[0].endswith(HARMLESS)]:
        raise ModelLoadError(
            f"model.uri: tensor {left[0]} is not part of {spec.architecture} as implemented here"
        )
    frequencies = inverse_frequencies(spec.rope, spec.head_dim)
    return Decoder(spec, embedding, layers, norm, linear(head), frequencies, backend)


@dataclass(frozen=True)
class _Reader:
    spec: ModelSpec
    weights: WeightSource
    dtype: torch.dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A small one: a copy of its own."""
        return self.weights.read(name, shape).to(self.dtype, copy=True)

    def matrix(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A large one: stays in the mapped file where that has the wanted type, so that engines
        on one node share its memory."""
        return self.weights.read(name, shape).to(self.dtype)

    def joined(self, prefix: str, parts: dict[str, int], width: int) -> Linear:
        """Matrices that take the same input, as one: [sum of outs, width]."""
        if len(parts) == 1:
            ((part, out),) = parts.items()
            return linear(self.matrix(f"{prefix}.{part}.weight", (out, width)))
        weight = torch.empty((sum(parts.values()), width), dtype=self.dtype)
        row = 0
        for part, out in parts.items():
            weight[row : row + out] = self.weights.read(f"{prefix}.{part}.weight", (out, width))
            row += out
        return linear(weight)


def _layer(reader: _Reader, index: int) -> DecoderLayer:
    spec, prefix = reader.spec, f"model.layers.{index}"
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def norm(name: str, size: int) -> Tensor:
        return reader.tensor(f"{prefix}.{name}.weight", (size,))

    return DecoderLayer(
        index=index,
        attention_norm=norm("input_layernorm", hidden),
        qkv=reader.joined(
            f"{prefix}.self_attn", {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}, hidden
        ),
        head_norm=_head_norm(reader, prefix) if spec.variant.qk_norm else None,
        output=reader.joined(f"{prefix}.self_attn", {"o_proj": hidden}, q_size),
        mlp_norm=norm("post_attention_layernorm", hidden),
        mlp=GatedMlp(
            reader.joined(f"{prefix}.mlp", {"gate_proj": inner, "up_proj": inner}, hidden),
            reader.joined(f"{prefix}.mlp", {"down_proj": hidden}, inner),
        ),
    )


def _head_norm(reader: _Reader, prefix: str) -> HeadNorm:
    """All query heads share one weight, all key heads another."""
    spec = reader.spec
    query, key = (
        reader.tensor(f"{prefix}.self_attn.{name}.weight", (spec.head_dim,))
        for name in ("q_norm", "k_norm")
    )
    weight = torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1)))
    return HeadNorm(weight, spec.norm_eps)
