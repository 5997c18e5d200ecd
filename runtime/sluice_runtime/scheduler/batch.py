"""Batch: what the scheduler tells the runner to do in one step, and what comes back.

A batch is a delta against rows that persist in the runner: rows added, pages appended, rows that
extend, rows that decode, rows dropped. It is complete, frozen and serialisable, so that ranks of a
tensor parallel group can receive it and CUDA graphs can pad it. It knows no tensor.

A row with drafts is verified: its last token and its drafts are computed at once, and a token is
drawn after each. The next batch says how many of the drawn tokens the row keeps.

A decode row carries no token: its input is the last token sampled for that row, which the runner
keeps. So a batch can be made before the previous batch's results have been read.

A chunk of a prompt may be computed in groups of layers, one group a step. Its extend row is
repeated for each group, and the runner keeps a group's output for the next group.

A batch's duration depends on its `StepShape`. The runner returns `SampledTokens`; from these the
scheduler makes a `StepOutcome`, with tokens for clients and facts for a hand-over.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from sluice_runtime.wire.messages import PlainTokens, Sampling, TokenDelta, TokenLogprob

NO_TOKEN: Final = -1
"""Marker in place of a token id: the row's logits are not finite, so nothing could be drawn."""


class ForwardMode(StrEnum):
    """Work of one forward pass."""

    EXTEND = "EXTEND"
    DECODE = "DECODE"
    MIXED = "MIXED"
    """Prompts together with rows that decode or are verified."""
    TARGET_VERIFY = "TARGET_VERIFY"
    """Rows that are verified, together with rows that decode; no prompts."""
    SPLIT_PREFILL = "SPLIT_PREFILL"
    """A prompt's chunk in some of the layers, together with rows that decode."""
    IDLE = "IDLE"
    """No forward pass: rows are dropped or outcomes reported, nothing else."""


class RowAdded(msgspec.Struct, frozen=True, array_like=True):
    """Assigns `row` to a request; its pages follow in the same batch."""

    row: int
    request_id: str
    sampling: Sampling
    prompt_tokens: int = 0
    history: bytes = b""
    """All tokens of the request so far, if its sampling looks back at them: int32 each, in the
    machine's byte order."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that would end the request and may not be drawn before its minimum length; empty
    without one."""
    logprobs: int = -1
    """Number of most probable tokens to report with each drawn token; -1: nothing."""
    prompt_logprobs: int = -1
    """Number of most probable tokens to report with each prompt token; -1: nothing. If not -1, the
    whole prompt is computed for this row, even if it is cached."""
    computed_tokens: int = 0
    """Tokens of a resumed row that another engine has written into the row's pages. The row decodes
    from `last_token` on, without an extend step. It may have two `PagesAppended` in this batch; the
    first is for these tokens."""
    last_token: int = NO_TOKEN
    adapter: str = ""
    """Key of the adapter that all of its tokens are computed with; empty: none."""
    adapter_folder: str = ""
    """Folder of the adapter's files."""
    has_grammar: bool = False
    """Whether its tokens are drawn by masks, which the first rank alone has."""


class PagesReplaced(msgspec.Struct, frozen=True, array_like=True):
    """Replaces the row's pages from index `first` on by pages of equal content, so that it is
    stored only once."""

    row: int
    first: int
    page_ids: tuple[int, ...]


class PagesAppended(msgspec.Struct, frozen=True, array_like=True):
    """Pages to add after those of the row, in the order of its tokens. An added row's first pages
    may be computed already; its last page only if the row is resumed."""

    row: int
    page_ids: tuple[int, ...]


class RowTrimmed(msgspec.Struct, frozen=True, array_like=True):
    """State of a row after the step that verified its drafts."""

    row: int
    length: int
    """Tokens whose keys and values are valid; those of refused drafts come after them."""
    pages: int
    """Number of leading pages that stay; the others were given back."""
    last_token: int


class ExtendRow(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, start + len(token_ids)) of a row: a whole prompt or a chunk of one."""

    row: int
    start: int
    """Tokens of the row that are in the pool already; equals the row's length in the runner."""
    token_ids: tuple[int, ...]
    samples: bool
    """Whether a token is drawn after the last of `token_ids`; false for a chunk that more chunks
    follow."""
    next_token: int = NO_TOKEN
    """Token after a chunk that more chunks follow, if a draft head computes the prompt too; else
    NO_TOKEN."""


class LayerGroup(msgspec.Struct, frozen=True, array_like=True):
    """Layers [first, end) of a model of `of` layers."""

    first: int
    end: int
    of: int

    @property
    def last(self) -> bool:
        """Whether the tokens are complete after this group."""
        return self.end == self.of

    @property
    def share(self) -> float:
        """Share of the model's layers."""
        return (self.end - self.first) / self.of


class VerifyRow(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, start + len(token_ids)) of a row: its last token and at least one draft. A
    draft that the draft model has yet to propose is NO_TOKEN. A token is drawn after each."""

    row: int
    start: int
    token_ids: tuple[int, ...]


class HostCopies(msgspec.Struct, frozen=True, array_like=True):
    """Pages to copy between the pool and the host tier. Slots are numbered: slots in memory first,
    then slots on disk."""

    saved: tuple[tuple[int, int], ...] = ()
    """(page, slot) pairs, copied before anything of the step writes to the pool."""
    loaded: tuple[tuple[int, int], ...] = ()
    """(slot, page) pairs, copied while the step runs; the step reads none of these pages."""
    spilled: tuple[tuple[int, int], ...] = ()
    """(slot in memory, slot on disk) pairs, copied while the step runs."""


class Batch(msgspec.Struct, frozen=True):
    """One step. Its fields are applied in order, so a dropped row may be added again, and a
    replaced page may belong to another row already."""

    step: int
    mode: ForwardMode
    replaced_pages: tuple[PagesReplaced, ...] = ()
    trimmed_rows: tuple[RowTrimmed, ...] = ()
    dropped_rows: tuple[int, ...] = ()
    added_rows: tuple[RowAdded, ...] = ()
    appended_pages: tuple[PagesAppended, ...] = ()
    extend_rows: tuple[ExtendRow, ...] = ()
    layers: LayerGroup | None = None
    """Layers in which the one extend row is computed; None: all rows are computed in all layers."""
    verify_rows: tuple[VerifyRow, ...] = ()
    draft_rows: tuple[ExtendRow, ...] = ()
    """Tokens that only the draft model computes (DRAFT_EXTEND): of verified rows all that it lacks
    before the last token, of decode rows a part."""
    decode_rows: tuple[int, ...] = ()
    """Rows advanced by one token: input is their last sampled token, start is their length."""
    decode_context_tokens: int = 0
    """Tokens that decode rows and verified rows attend to, without drafts; used for the step's
    cost."""
    host_copies: HostCopies | None = None
    """Copies to start in this step."""
    graph_rows: int | None = None
    """Rows of a CUDA graph to capture; such a batch has none of its own."""

    @property
    def sampling_rows(self) -> tuple[int, ...]:
        """The row of each token that is drawn, in the order of the results."""
        prompts = tuple([extend.row for extend in self.extend_rows if extend.samples])
        if not self.verify_rows:
            return prompts + self.decode_rows
        verified = tuple([row.row for row in self.verify_rows for _ in row.token_ids])
        return prompts + verified + self.decode_rows

    @property
    def answering_rows(self) -> int:
        """Number of rows that get at least one more token of their answer."""
        return len(self.decode_rows) + len(self.verify_rows)

    @property
    def draft_tokens(self) -> int:
        """Drafts that this step verifies."""
        return sum(len(row.token_ids) - 1 for row in self.verify_rows)

    @property
    def cached_tokens(self) -> int:
        """Computed tokens of the rows that this step adds, from the prefix cache or another
        engine."""
        added = {row.row for row in self.added_rows}
        return sum(extend.start for extend in self.extend_rows if extend.row in added)

    @property
    def extend_tokens(self) -> int:
        """Prompt tokens computed by this step, or by a group of layers in it."""
        return sum(len(extend.token_ids) for extend in self.extend_rows)


def forward_mode(
    extends: bool, decodes: bool, verifies: bool = False, *, splits: bool = False
) -> ForwardMode:
    """The mode of a batch by the kinds of its rows. `splits`: whether the extend row is computed in
    only some layers."""
    if splits:
        return ForwardMode.SPLIT_PREFILL
    if extends:
        return ForwardMode.MIXED if decodes or verifies else ForwardMode.EXTEND
    if verifies:
        return ForwardMode.TARGET_VERIFY
    return ForwardMode.DECODE if decodes else ForwardMode.IDLE


class StepShape(NamedTuple):
    """Amount of work in one step, without drafts."""

    extend_tokens: float = 0
    """Prompt tokens; tokens in a group of layers count with the group's share of the layers."""
    extend_context_products: float = 0
    """Pairs of a prompt token and a token that it attends to, itself included; weighted by the
    share of layers like `extend_tokens`."""
    decode_rows: int = 0
    decode_context_tokens: int = 0
    """Tokens that the decode rows attend to, their own included."""
    passes: float = 1
    """Number of times that the weights are read; a group of layers adds a read of its own
    weights."""

    @property
    def features(self) -> tuple[float, ...]:
        """Terms of the linear function that gives the step's duration."""
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
    """The shape with its prompt tokens computed in a share of the layers, in a separate pass."""
    return shape._replace(
        extend_tokens=shape.extend_tokens * share,
        extend_context_products=shape.extend_context_products * share,
        passes=bool(shape.decode_rows) + share,
    )


def context_products(start: int, tokens: int) -> int:
    """Number of pairs of a token and a token that it attends to, for `tokens` tokens after the
    first `start`."""
    return tokens * start + tokens * (tokens + 1) // 2


SampledRow = tuple[int, TokenLogprob | None, list[TokenLogprob] | None]
"""One row's result of a step: a token, its logprob, and the logprobs of its prompt."""


class HostCopied(msgspec.Struct, frozen=True, array_like=True):
    """Copies of one kind that one step began and that have ended."""

    step: int
    kind: Literal["saved", "loaded", "spilled"]
    pages: int
    seconds: float
    bad_slots: tuple[int, ...] = ()
    """Slots of `loaded` copies with damaged content, or slots on disk that `spilled` copies could
    not write."""


class SampledTokens(msgspec.Struct, frozen=True):
    """Result of a step: one token, or NO_TOKEN, for each of its `sampling_rows`, in that order.
    Each token of a verified row is drawn as if all drafts before it were right."""

    step: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob | None, ...] = ()
    """One entry for each token; empty when no row asks for logprobs."""
    prompt_logprobs: tuple[list[TokenLogprob] | None, ...] = ()
    """Logprobs of a whole prompt, in the entry of the token drawn after it; empty when no row
    asks."""
    drafts: tuple[int, ...] = ()
    """Drafts of the verified rows that the draft model proposed, one row after the other."""
    error: str = ""
    """Explains why the step ran out of memory; then none of its rows has a result. Empty: it did
    not."""
    copied: tuple[HostCopied, ...] = ()
    """Copies that have ended since the last step, whichever step began them."""

    def drafts_of(self, batch: Batch) -> Iterator[tuple[int, ...]]:
        """The drafts of each verified row of the batch."""
        proposed = iter(self.drafts)
        for row in batch.verify_rows:
            drafts = row.token_ids[1:]
            yield tuple(islice(proposed, len(drafts))) if self.drafts else drafts

    def rows(self) -> Iterator[SampledRow]:
        """The result of each of the step's sampling rows."""
        nothing = (None,) * len(self.token_ids)
        logprobs, prompt_logprobs = self.logprobs or nothing, self.prompt_logprobs or nothing
        return zip(self.token_ids, logprobs, prompt_logprobs, strict=True)


class FinishedChunk(NamedTuple):
    """Tokens [start, end) of a prompt whose keys and values are complete now.

    The first chunk of a request begins at 0, because cached tokens are complete too; after a
    retraction chunks begin at 0 again. The request holds the pages until it ends or is retracted.
    """

    request_id: str
    row: int
    start: int
    end: int
    page_ids: tuple[int, ...]
    """Pages of these tokens. Every chunk of a prompt except the last ends with a full page."""
    tokens: bytes
    """Tokens of the chunk, int32 each in the machine's byte order: cached tokens first, then tokens
    that the runner computed."""


class Preallocated(NamedTuple):
    """Destination into which another engine writes the keys and values of a prompt."""

    request_id: str
    page_ids: tuple[int, ...]
    """Pages of the whole prompt, in order."""
    cached_tokens: int
    """Leading tokens that are cached already, in whole pages; their pages must not be written."""


class StepOutcome(NamedTuple):
    """Results for requests since the last call."""

    special: list[TokenDelta]
    """Results that are more than one token; they come before `plain` ones of their requests."""
    plain: PlainTokens
    finished_chunks: tuple[FinishedChunk, ...] = ()
    """Empty unless `SchedulerSettings.report_chunks`."""
    accepted_tokens: int = 0
    """Drafts of the step that became part of answers."""

    @property
    def deltas(self) -> list[TokenDelta]:
        """All results, in order."""
        return self.special + self.plain.deltas
