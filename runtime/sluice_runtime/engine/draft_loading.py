"""Loads a draft model or a draft head for a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sluice_contract.base import ConfigError
from sluice_contract.config.sizing import ResolvedConfig

from sluice_runtime.engine.device import Device, allocation
from sluice_runtime.engine.rows import RowState
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.grammar.vocabulary import token_bytes, unusable
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import (
    DRAFT_KEY,
    ModelFiles,
    drafts_with_head,
    of_draft,
    resolve_draft,
)
from sluice_runtime.model.layer_tensors import Placement
from sluice_runtime.model.load import load_model
from sluice_runtime.model.spec import ModelSpec

if TYPE_CHECKING:
    from sluice_runtime.engine.draft import DraftModel
    from sluice_runtime.engine.eagle import EagleDrafts
    from sluice_runtime.model.eagle import EagleHead, HeadSpec

_DRAFT_WEIGHTS: Final = ("draft model weights", "more memory", "the size of the draft model")
"""Text for a lack of memory: what was to be allocated, and what to change."""


def draft_model(config: ResolvedConfig, files: ModelFiles, placement: Placement) -> Decoder | None:
    """The draft model, on the ranks of the model of `files`; None: there is none."""
    draft = resolve_draft(config)
    if draft is None or drafts_with_head(config):
        return None
    if allowed := _vocabularies_differ(files, draft):
        raise InvalidConfigError(str(ConfigError(DRAFT_KEY, draft.uri, allowed)))
    placement = replace(placement, slots=None)
    with allocation(*_DRAFT_WEIGHTS), of_draft():
        dtype, backend = config.dtype, config.attention_backend
        return load_model(draft, dtype, config.seed, backend, placement)


def spec_of_head(config: ResolvedConfig, target: ModelSpec) -> HeadSpec | None:
    """Spec of the draft head, before the model is read; None: there is none."""
    draft = resolve_draft(config)
    if draft is None or not drafts_with_head(config):
        return None
    from sluice_runtime.model.eagle import head_spec  # only needed with a draft head

    return head_spec(draft, target)


def loaded_head(
    config: ResolvedConfig, spec: HeadSpec | None, model: Decoder, placement: Placement
) -> EagleHead | None:
    """The head of `spec` on `model`; None without one."""
    if spec is None:
        return None
    from sluice_runtime.model.eagle import load_head

    with allocation(*_DRAFT_WEIGHTS):
        return load_head(spec, model, placement.device, config.attention_backend)


def head_drafts(
    config: ResolvedConfig, head: EagleHead, pool: PagePool, rows: RowState, device: Device
) -> EagleDrafts | None:
    """Drafting by `head` for rows with pages in `pool`; None: it drafts nothing."""
    if pool.draft is None or config.speculation is None:
        return None
    from sluice_runtime.engine.draft import DraftDraws
    from sluice_runtime.engine.eagle import EagleDrafts

    draws = DraftDraws(rows.sampling, rows.matchers, device)
    return EagleDrafts(head, pool.draft, rows.table, draws, device, config.speculation.tokens)


def _vocabularies_differ(files: ModelFiles, draft: ModelFiles) -> str | None:
    """Text about the vocabulary that the draft model should have but has not; None: it fits. Tokens
    are compared if both tokenizers are known."""
    size, own = (spec_from(model_files.config).vocabulary_size for model_files in (files, draft))
    if own != size:
        return f"a model with the model's vocabulary of {size} tokens (it has {own})"
    if unusable(files) or unusable(draft):
        return None
    tokens = zip(token_bytes(files, size), token_bytes(draft, size), strict=True)
    differs = next((i for i, (token, other) in enumerate(tokens) if token != other), None)
    return None if differs is None else f"a model with the model's tokens ({differs} is another)"


def model_drafts(
    draft: Decoder | None, pool: PagePool, rows: RowState, device: Device
) -> DraftModel | None:
    """Drafting by the model `draft` for rows with pages in `pool`; None: there is no draft
    model."""
    if draft is None or pool.draft is None:
        return None
    from sluice_runtime.engine.draft import DraftDraws, DraftModel  # only needed with a draft model

    draws = DraftDraws(rows.sampling, rows.matchers, device)
    return DraftModel(draft, pool.draft, rows.table, draws, device)
