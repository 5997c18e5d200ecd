"""Batch: what the scheduler tells the runner to do in one step, and what comes back.

A batch is a delta against rows that persist in the runner: rows added, pages appended, rows that
extend, rows that decode, rows dropped. It is complete, frozen and serialisable, so that ranks of a
tensor parallel group can receive it and CUDA graphs can pad it. It knows no tensor.

A row with drafts is verified: its last token and its drafts are computed at once, and a token is
drawn after each of them. How many of these it keeps is in the next batch.

A decode row carries no token: its input is the last token sampled for that row, which the runner
keeps. So a batch can be made before the results of the one before it have been read.

A chunk of a prompt may be computed in groups of layers, one a step: its extend row comes again with
each of them, and the runner keeps what leaves a group until the next one.

A batch's `StepShape` is what its duration depends on. The runner answers with `SampledTokens`; the
scheduler makes a `StepOutcome` of it: tokens for clients, and what a hand-over needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from sluice_runtime.wire.messages import Sampling, TokenDelta, TokenLogprob

NO_TOKEN: Final = -1
"""In place of a token id: the row's logits are not finite, so nothing could be drawn."""


class ForwardMode(StrEnum):
    """What one forward pass computes."""

    EXTEND = "EXTEND"
    DECODE = "DECODE"
    MIXED = "MIXED"
    """Prompts beside rows that decode or are verified."""
    TARGET_VERIFY = "TARGET_VERIFY"
    """Rows are verified, beside rows that decode; no prompts."""
    SPLIT_PREFILL = "SPLIT_PREFILL"
    """A prompt's chunk in some of the layers, beside rows that decode."""
    IDLE = "IDLE"
    """No forward pass: rows are dropped, or outcomes reported, and that is all."""


class RowAdded(msgspec.Struct, frozen=True, array_like=True):
    """`row` belongs to this request from now on; its pages follow in the same batch."""

    row: int
    request_id: str
    sampling: Sampling
    prompt_tokens: int = 0
    history: tuple[int, ...] = ()
    """All tokens of the request so far, if its sampling looks back at them."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that would end it, if some may not be drawn at first."""
    logprobs: int = -1
    """Most probable tokens to tell beside each token drawn; -1: nothing."""
    prompt_logprobs: int = -1
    """The same of the prompt's tokens; with it all of the prompt is computed for this row."""
    computed_tokens: int = 0
    """Of a row that is resumed: so many tokens are in its pages already, written by another engine.
    It decodes from `last_token` on, without an extend step; of the two `PagesAppended` that it may
    have in this batch, the first has these tokens."""
    last_token: int = NO_TOKEN
    adapter: str = ""
    """Key of the adapter that all of its tokens are computed with; empty: none."""
    adapter_folder: str = ""
    """Where its files are."""


class PagesReplaced(msgspec.Struct, frozen=True, array_like=True):
    """The row's pages from index `first` on are these from now on: equal content, kept once."""

    row: int
    first: int
    page_ids: tuple[int, ...]


class PagesAppended(msgspec.Struct, frozen=True, array_like=True):
    """Pages that follow those the row already has, in the order of its tokens. Of a row just added
    the first may be computed already; the last one only of a row that is resumed."""

    row: int
    page_ids: tuple[int, ...]


class RowTrimmed(msgspec.Struct, frozen=True, array_like=True):
    """What a row has after the step that verified its drafts."""

    row: int
    length: int
    """Tokens whose keys and values hold; those of refused drafts lie behind them."""
    pages: int
    """Its first ones stay, the others have gone."""
    last_token: int


class ExtendRow(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, start + len(token_ids)) of a row: a whole prompt or a chunk of one."""

    row: int
    start: int
    """Tokens of the row that are in the pool already; the runner's row has this length."""
    token_ids: tuple[int, ...]
    samples: bool
    """Whether the next token is drawn after it; never for a chunk that more chunks follow."""
    next_token: int = NO_TOKEN
    """Of such a chunk, the token behind it, where a head computes what the model has computed."""


class LayerGroup(msgspec.Struct, frozen=True, array_like=True):
    """The layers [first, end) of a model of `of` layers."""

    first: int
    end: int
    of: int

    @property
    def last(self) -> bool:
        """Whether the tokens are complete after it."""
        return self.end == self.of

    @property
    def share(self) -> float:
        """Part of the layers."""
        return (self.end - self.first) / self.of


class VerifyRow(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, start + len(token_ids)) of a row: its last token, and at least one draft, or
    NO_TOKEN for each that the draft model is to propose. A token is drawn after each."""

    row: int
    start: int
    token_ids: tuple[int, ...]


class HostCopies(msgspec.Struct, frozen=True, array_like=True):
    """Pages to copy between the pool and the host tier. Slots are numbered: those in memory first,
    behind them those on disk."""

    saved: tuple[tuple[int, int], ...] = ()
    """(page, slot): before anything of the step writes to the pool."""
    loaded: tuple[tuple[int, int], ...] = ()
    """(slot, page): beside the step, which reads none of these pages."""
    spilled: tuple[tuple[int, int], ...] = ()
    """(slot in memory, slot on disk): beside the step."""


class Batch(msgspec.Struct, frozen=True):
    """One step. Applied in the order of the fields: a dropped row may be added again at once, and
    a page that was replaced may be another row's already."""

    step: int
    mode: ForwardMode
    replaced_pages: tuple[PagesReplaced, ...] = ()
    trimmed_rows: tuple[RowTrimmed, ...] = ()
    dropped_rows: tuple[int, ...] = ()
    added_rows: tuple[RowAdded, ...] = ()
    appended_pages: tuple[PagesAppended, ...] = ()
    extend_rows: tuple[ExtendRow, ...] = ()
    layers: LayerGroup | None = None
    """Those in which the one extend row is computed; None: all rows are computed in all."""
    verify_rows: tuple[VerifyRow, ...] = ()
    draft_rows: tuple[ExtendRow, ...] = ()
    """What the draft model has not computed of verified rows, up to their last token, and a part of
    that of rows that decode: it alone computes these (DRAFT_EXTEND)."""
    decode_rows: tuple[int, ...] = ()
    """Rows advanced by one token: input is their last sampled token, start is their length."""
    decode_context_tokens: int = 0
    """Tokens that decode rows and verified rows attend to, without drafts: what the step costs."""
    host_copies: HostCopies | None = None
    """Copies to begin with this step."""

    @property
    def sampling_rows(self) -> tuple[int, ...]:
        """The row of each token that is drawn, in the order in which results are returned."""
        prompts = tuple([extend.row for extend in self.extend_rows if extend.samples])
        if not self.verify_rows:
            return prompts + self.decode_rows
        verified = tuple([row.row for row in self.verify_rows for _ in row.token_ids])
        return prompts + verified + self.decode_rows

    @property
    def answering_rows(self) -> int:
        """Rows that get at least one more token of their answer."""
        return len(self.decode_rows) + len(self.verify_rows)

    @property
    def draft_tokens(self) -> int:
        """Drafts that this step verifies."""
        return sum(len(row.token_ids) - 1 for row in self.verify_rows)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the rows added by this step that were computed before."""
        added = {row.row for row in self.added_rows}
        return sum(extend.start for extend in self.extend_rows if extend.row in added)

    @property
    def extend_tokens(self) -> int:
        """Prompt tokens computed by this step, or by a group of layers in it."""
        return sum(len(extend.token_ids) for extend in self.extend_rows)


def forward_mode(
    extends: bool, decodes: bool, verifies: bool = False, *, splits: bool = False
) -> ForwardMode:
    """The mode of a batch with or without rows of each kind; `splits`: those that extend are
    computed in some of the layers."""
    if splits:
        return ForwardMode.SPLIT_PREFILL
    if extends:
        return ForwardMode.MIXED if decodes or verifies else ForwardMode.EXTEND
    if verifies:
        return ForwardMode.TARGET_VERIFY
    return ForwardMode.DECODE if decodes else ForwardMode.IDLE


class StepShape(NamedTuple):
    """What one step computes, but for drafts."""

    extend_tokens: float = 0
    """Prompt tokens; of tokens in a group of layers, the group's share."""
    extend_context_products: float = 0
    """Pairs of a prompt token and a token that it attends to, itself included; the share likewise.
    """
    decode_rows: int = 0
    decode_context_tokens: int = 0
    """Tokens that the decode rows attend to, their own included."""
    passes: float = 1
    """How often the weights are read: a group of layers reads its own again."""

    @property
    def features(self) -> tuple[float, ...]:
        """What the step's duration is a linear function of."""
        return (self.passes, *self[:4])


def shape_of(batch: Batch) -> StepShape:
    """The shape of a batch."""
    extends = [(row.start, len(row.token_ids)) for row in batch.extend_rows]
    shape = StepShape(
        extend_tokens=sum(tokens for _, tokens in extends),
        extend_context_products=sum(context_products(*extend) for extend in extends),
        decode_rows=batch.answering_rows,
        decode_context_tokens=batch.decode_context_tokens,
    )
    return in_layers(shape, batch.layers.share) if batch.layers else shape


def in_layers(shape: StepShape, share: float) -> StepShape:
    """The same with its prompt tokens in a share of the layers, in a pass of their own."""
    return shape._replace(
        extend_tokens=shape.extend_tokens * share,
        extend_context_products=shape.extend_context_products * share,
        passes=bool(shape.decode_rows) + share,
    )


def context_products(start: int, tokens: int) -> int:
    """Pairs of a token and one it attends to, for `tokens` tokens after the first `start`."""
    return tokens * start + tokens * (tokens + 1) // 2


SampledRow = tuple[int, TokenLogprob | None, list[TokenLogprob] | None]
"""What one row got from a step: a token, its logprob, and those of its prompt."""


class HostCopied(msgspec.Struct, frozen=True, array_like=True):
    """Copies of one kind that a step began, and that have ended."""

    step: int
    kind: Literal["saved", "loaded", "spilled"]
    pages: int
    seconds: float
    bad_slots: tuple[int, ...] = ()
    """Of `loaded`: slots whose content was not what had been written; of `spilled`: slots on disk
    that could not be written."""


class SampledTokens(msgspec.Struct, frozen=True):
    """Result of a step: one token, or NO_TOKEN, for each of its `sampling_rows`, in that order. Of
    a verified row they are what would be drawn if all drafts before were right."""

    step: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob | None, ...] = ()
    """Empty when no row asks, else one entry for each token; so are the next."""
    prompt_logprobs: tuple[list[TokenLogprob] | None, ...] = ()
    """Of a whole prompt, with the token drawn after it."""
    drafts: tuple[int, ...] = ()
    """Of verified rows, one after the other, where the draft model has proposed them."""
    error: str = ""
    """Why the step found too little memory: none of its rows has a result."""
    copied: tuple[HostCopied, ...] = ()
    """Copies that have ended since the last step, of whichever step they were."""

    def drafts_of(self, batch: Batch) -> Iterator[tuple[int, ...]]:
        """What each of the batch's verified rows had drafted."""
        proposed = iter(self.drafts)
        for row in batch.verify_rows:
            drafts = row.token_ids[1:]
            yield tuple(islice(proposed, len(drafts))) if self.drafts else drafts

    def rows(self) -> Iterator[SampledRow]:
        """What each of the step's sampling rows got."""
        nothing = (None,) * len(self.token_ids)
        logprobs, prompt_logprobs = self.logprobs or nothing, self.prompt_logprobs or nothing
        return zip(self.token_ids, logprobs, prompt_logprobs, strict=True)


class FinishedChunk(NamedTuple):
    """Tokens [start, end) of a prompt whose keys and values are complete now.

    The first chunk of a request begins at 0, because what was cached is complete too; so it does
    again after a retraction. The pages stay the request's until it ends or is retracted.
    """

    request_id: str
    row: int
    start: int
    end: int
    page_ids: tuple[int, ...]
    """The pages of these tokens. All but the last chunk of a prompt end at the end of a page."""
    token_ids: tuple[int, ...]
    """As the runner computed them, behind those that were cached."""


class Preallocated(NamedTuple):
    """Where another engine writes the keys and values of a prompt."""

    request_id: str
    page_ids: tuple[int, ...]
    """Of the whole prompt, in order."""
    cached_tokens: int
    """Leading tokens that are cached already, in whole pages: nobody may write into these."""


class StepOutcome(NamedTuple):
    """What became of requests since the last call."""

    deltas: list[TokenDelta]
    finished_chunks: tuple[FinishedChunk, ...] = ()
    """Empty unless `SchedulerSettings.report_chunks`."""
    accepted_tokens: int = 0
    """Drafts of the step that answers keep."""
