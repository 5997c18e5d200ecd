"""EAGLE-3 heads in the hub's format: how a head computes, and how it is read.

A head is one layer that proposes tokens from the model's hidden states. At each position it
concatenates the inputs of three of the model's layers, and `fc` projects them to one state of the
head's size. The layer's queries, keys and values are computed from this state and from the
embedding of the next token, both normed. The state plus the layer's output is the head's hidden
state; its norm and the output layer propose the token after the next. Where the model has not
computed yet, the head's hidden state of the previous position replaces `fc`'s.

The head's vocabulary is the most frequent tokens only; `d2t` is the difference from a token's id
there to its id in the model's vocabulary. Maths: Li et al., EAGLE-3 (2025), and the authors'
cnets.py.

Knows one device and no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from sluice_contract.config.engine import AttentionBackend, KvCacheDtype
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.kv.pool import KvScales, PagePool
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.backend import Backend, choose_backend, with_pages
from sluice_runtime.layers.dense import Linear, linear
from sluice_runtime.layers.rope import Frequencies, angles_of, inverse_frequencies
from sluice_runtime.layers.stack import PagedStep
from sluice_runtime.layers.stacks import FusedLayer
from sluice_runtime.model.config_json import Config, refused, whole_number
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import family_of, spec_from
from sluice_runtime.model.files import ModelFiles, of_draft
from sluice_runtime.model.kv_scales import ones
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import weights_of
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.weights import Checkpoint
from sluice_runtime.parallel.group import SOLO, Group

ARCHITECTURE: Final = "LlamaForCausalLMEagle3"
TAPS: Final = 3
"""Number of hidden states of the model that a head gets at each position."""
_IDS: Final = "eagle_aux_hidden_state_layer_ids"
_EMBEDDING: Final = "embed_tokens"
_MAPS: Final = ("d2t", "t2d")
"""Names of the tensors that map one vocabulary to the other; each can be computed from the
other."""


@dataclass(frozen=True)
class HeadSpec:
    """Everything about a head except its weights."""

    folder: Path
    layer: ModelSpec
    """Spec of the head as a decoder of one layer, whose vocabulary is the one it proposes from."""
    target: ModelSpec
    taps: tuple[int, ...]
    """Numbers of the model's layers whose inputs the head gets; ascending."""
    has_embedding: bool
    """Whether it has its own embedding; otherwise it uses the model's."""

    @property
    def other_values(self) -> int:
        """Number of the head's weight values that an ordinary decoder of one layer does not
        have."""
        layer, target = self.layer, self.target
        outputs = (layer.heads + 2 * layer.kv_heads) * layer.head_dim
        values = (outputs + TAPS * target.hidden_size + 1) * layer.hidden_size
        embedding = target.vocabulary_size * layer.hidden_size
        return values + (embedding if self.has_embedding else 0)


@of_draft()
def head_spec(files: ModelFiles, target: ModelSpec) -> HeadSpec:
    """The head behind `files`, for the model `target`.

    Raises:
        ModelLoadError: names the key, its value and what is allowed, or the file.
    """
    config = files.config
    if (named := config.get("architectures")) != [ARCHITECTURE] or files.folder is None:
        raise refused("architectures", named, f"[{ARCHITECTURE!r}], an EAGLE-3 head")
    if target.embedding_scale is not None:
        raise refused(
            "architectures", named, f"no head with {target.architecture} (its embeddings)"
        )
    proposed = whole_number(config, "draft_vocab_size", target.vocabulary_size)
    layer = spec_from({**config, "architectures": ["LlamaForCausalLM"]})
    own, its = target.vocabulary_size, target.hidden_size
    hidden = whole_number(config, "target_hidden_size", layer.hidden_size)
    _refuse_others(
        {
            "num_hidden_layers": (layer.layers, 1, ""),
            "vocab_size": (layer.vocabulary_size, own, " (the model's)"),
            "target_hidden_size": (hidden, its, " (the model's hidden_size)"),
            "tie_word_embeddings": (layer.tied_embeddings, False, ""),
            "norm_before_residual": (config.get("norm_before_residual") or False, False, ""),
        }
    )
    if proposed > own:
        raise refused("draft_vocab_size", proposed, f"at most {own} (the model's vocab_size)")
    with Checkpoint(files.folder) as checkpoint:
        has_embedding = checkpoint.stored(f"{_EMBEDDING}.weight") is not None
    return HeadSpec(
        folder=files.folder,
        layer=replace(layer, vocabulary_size=proposed, tied_embeddings=True),
        target=target,
        taps=_taps(config, target.layers),
        has_embedding=has_embedding or layer.hidden_size != target.hidden_size,
    )


def _refuse_others(keys: Mapping[str, tuple[object, object, str]]) -> None:
    for key, (value, allowed, what) in keys.items():
        if value != allowed:
            raise refused(key, value, f"{allowed}{what}")


def _taps(config: Config, layers: int) -> tuple[int, ...]:
    """The head's taps, ascending. config.json names the layers whose outputs are tapped; taps name
    the layers that get these outputs as inputs, one higher."""
    eagle: Mapping[str, Any] = config.get("eagle_config") or {}
    if eagle.get("use_aux_hidden_state") is False:
        raise refused("eagle_config.use_aux_hidden_state", False, "true, as EAGLE-3 has it")
    if config.get(_IDS) is not None:
        raise refused(_IDS, config[_IDS], f"absent; eagle_config.{_IDS} instead")
    ids = eagle.get(_IDS)
    if ids is None:
        ids = [1, layers // 2 - 1, layers - 4]
    known = isinstance(ids, list) and all(type(i) is int and 0 <= i < layers for i in ids)
    if not known or len({*ids}) != TAPS or len(ids) != TAPS:
        allowed = f"{TAPS} different layers of the model's, 0 to {layers - 1}"
        raise refused(f"eagle_config.{_IDS}", ids, allowed)
    return tuple(sorted(i + 1 for i in ids))


@dataclass(frozen=True)
class EagleHead:
    """A loaded head. n tokens; h: its hidden size."""

    spec: ModelSpec
    """Spec of the head as a decoder: see `HeadSpec.layer`."""
    taps: tuple[int, ...]
    """Numbers of the model's layers whose inputs the head gets: see `HeadSpec.taps`."""
    vocabulary_size: int
    """Vocabulary size of the model."""
    embedding: Tensor
    """Embedding [vocabulary of the model, h]."""
    fc: Linear
    """Joins the model's states: [n, 3 x the model's h] → [n, h]."""
    hidden_norm: Tensor
    layer: FusedLayer
    norm: Tensor
    output: Linear
    token_ids: Tensor | None
    """Each token's id in the model's vocabulary, [vocabulary of the head]; None: ids are equal."""
    frequencies: Frequencies
    backend: Backend
    group: Group = SOLO
    kv_scales: KvScales | None = None
    """Scales of 1, if the model has scales: a head's keys and values are in pages like the
    model's."""

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def hidden(
        self,
        before: Tensor,
        next_ids: Tensor,
        positions: Tensor,
        pool: PagePool,
        layout: TokenLayout,
    ) -> Tensor:
        """Hidden states [n, h] of the head. before: [n, h] outputs of `fc`, or the head's hidden
        states of the previous positions; may be changed. next_ids: [n] the token after each
        position."""
        step = PagedStep(pool, layout, angles_of(self.frequencies, positions))
        embedded = F.embedding(next_ids, self.embedding)
        return self.layer.fuse(embedded, before, self.hidden_norm, step)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits: [m, h] → [m, vocabulary of the model], float32; -inf for tokens that the head
        lacks."""
        normed = self.backend.operators.rms_norm(hidden, self.norm, self.spec.norm_eps)
        own = self.backend.to_float(self.output(normed))
        if self.token_ids is None:
            return own
        logits = own.new_full((len(own), self.vocabulary_size), -inf)
        return logits.index_copy_(1, self.token_ids, own)


@of_draft()
def load_head(
    spec: HeadSpec, model: Decoder, device: torch.device, backend: AttentionBackend = "auto"
) -> EagleHead:
    """Loads the head of `model`, in the model's dtype.

    Raises:
        ModelLoadError: one line with file, tensor and shapes.
        InvalidConfigError: see `choose_backend`.
    """
    layer, alone = spec.layer, Placement(device)
    pages: KvCacheDtype = "auto" if model.kv_scales is None else "fp8_e4m3"
    choice = choose_backend(model.dtype, layer.head_dim, device, backend, pages)
    backend_of_head = with_pages(choice.backend, pages)
    with Checkpoint(spec.folder) as checkpoint, weights_of(checkpoint, alone) as weights:
        reader = Reader(layer, weights, model.dtype, alone)
        ids = _token_ids(checkpoint, spec)
        head = EagleHead(
            spec=layer,
            taps=spec.taps,
            vocabulary_size=spec.target.vocabulary_size,
            embedding=_embedding(reader, spec, model),
            fc=linear(reader.table("fc", layer.hidden_size, TAPS * spec.target.hidden_size)),
            hidden_norm=reader.norm("midlayer.hidden_norm", layer.hidden_size),
            layer=_layer(reader, backend_of_head),
            norm=reader.norm("norm", layer.hidden_size),
            output=linear(reader.table("lm_head", layer.vocabulary_size, layer.hidden_size)),
            token_ids=None if ids is None else ids.to(device),
            frequencies=inverse_frequencies(layer.rope, layer.head_dim).to(device),
            backend=backend_of_head,
            kv_scales=None if pages == "auto" else ones(layer.layers, layer.kv_heads),
        )
        weights.settle()
    if left := [name for name in weights.unread() if name.split(" in ")[0] not in _MAPS]:
        raise ModelLoadError(f"model.uri: tensor {left[0]} is not part of {ARCHITECTURE}")
    return head


def _layer(reader: Reader, backend: Backend) -> FusedLayer:
    family = family_of(reader.spec)
    weights = family.read_layer(reader, "midlayer", 2 * reader.spec.hidden_size)
    return FusedLayer([weights], family.layer_shape(reader.spec, SOLO), backend.operators)


def _embedding(reader: Reader, spec: HeadSpec, model: Decoder) -> Tensor:
    if not spec.has_embedding:
        return model.embedding
    return reader.table(_EMBEDDING, spec.target.vocabulary_size, spec.layer.hidden_size)


def _token_ids(checkpoint: Checkpoint, spec: HeadSpec) -> Tensor | None:
    """Ids for `EagleHead.token_ids`, checked."""
    own, size = spec.layer.vocabulary_size, spec.target.vocabulary_size
    stored = checkpoint.stored("d2t")
    if own == size and stored is None:
        return None
    integers = torch.int32 if stored is not None and stored.dtype == "I32" else torch.int64
    path, file = checkpoint.find("d2t", (own,), integers)
    offsets: Tensor = file.get_tensor("d2t")
    ids = offsets.long() + torch.arange(own)
    if own and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise ModelLoadError(
            f"model.uri: {path}: tensor d2t leads to tokens {int(ids.min())} to {int(ids.max())}; "
            f"allowed: 0 to {size - 1}"
        )
    return ids
