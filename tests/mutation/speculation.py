"""Lines of speculation, each with a way to break it. The tests must notice every one."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

TESTS: Final = ("test_speculation",)

SPECULATION_MUTATIONS: Final = (
    Mutation(
        "speculation: tokens after a wrong draft are kept",
        "scheduler",
        "if sampled[0] != draft:",
        "if False:",
        TESTS,
    ),
    Mutation(
        "speculation: a row is not moved on by the drafts that it keeps",
        "scheduler",
        "self._table.running.skip(request, accepted)",
        "pass",
        TESTS,
    ),
    Mutation(
        "speculation: pages of refused drafts are not given back",
        "kv_allocator",
        "        self._defer_free(DeferredFree(refused), request)\n        length",
        "        length",
        TESTS,
    ),
    Mutation(
        "speculation: a step is launched before drafts are verified",
        "scheduler",
        "if any(step.verify for step in self._pending.values()):",
        "if False:",
        TESTS,
    ),
    Mutation(
        "speculation: drafts take more logits than there are rows",
        "speculation",
        "return DraftRoom(min(self._kv.free_rows, tokens), pages)",
        "return DraftRoom(tokens, pages)",
        TESTS,
    ),
    Mutation(
        "speculation: drafts take pages that are not free",
        "speculation",
        "if opens > pages or not self._keeps_target(tokens + 1, lag + more_lag):",
        "if not self._keeps_target(tokens + 1, lag + more_lag):",
        TESTS,
    ),
    Mutation(
        "speculation: drafts are verified whatever was promised",
        "speculation",
        "return (self._time.at_most(tokens) + lag_seconds) * MARGIN <= target.seconds",
        "return True",
        TESTS,
    ),
    Mutation(
        "speculation: prompts and drafts together break the promise",
        "speculation",
        "if settings.target and prefill:",
        "if False:",
        TESTS,
    ),
    Mutation(
        "speculation: more is drafted than may be drawn",
        "speculation",
        "and request.remaining_tokens > 1",
        "and request.remaining_tokens > 0",
        TESTS,
    ),
    Mutation(
        "speculation: a row that is never right goes on drafting",
        "speculation",
        "and row.chance >= LEAST_CHANCE",
        "and True",
        TESTS,
    ),
    Mutation(
        "speculation: rows with penalties or a grammar draft",
        "request",
        "return message.grammar is None and not message.sampling.penalises",
        "return True",
        TESTS,
    ),
    Mutation(
        "speculation: edits of logits hold for the first token of a verified row alone",
        "penalties",
        "firsts[group].repeat(times) + within",
        "firsts[group].repeat(times)",
        ("test_sampling_table",),
        package="engine/sampling",
    ),
    Mutation(
        "speculation: the end of a request finds itself",
        "ngram",
        "for place in range(first, min(last, first + INDEXED_AT_ONCE)):",
        "for place in range(first, min(last + 1, first + INDEXED_AT_ONCE)):",
        ("test_ngram",),
    ),
    Mutation(
        "speculation: the draft model does not catch up on long rows",
        "draft",
        "        for rows in _passes([row for row in batch.draft_rows if row.row not in few]):",
        "        for rows in ():",
        ("test_draft",),
        package="engine",
    ),
    Mutation(
        "speculation: the draft model is thought to have computed its last draft",
        "speculation",
        "request.computed_tokens - 1 + min(drafted, accepted + 1)",
        "request.computed_tokens + accepted",
        TESTS,
    ),
    Mutation(
        "speculation: a request that was sent back keeps what the draft model had computed",
        "kv_allocator",
        "request.computed_tokens = request.prefilled_tokens = request.draft_computed_tokens = 0",
        "request.computed_tokens = request.prefilled_tokens = 0",
        TESTS,
    ),
    Mutation(
        "speculation: drafts that do not pay may cost any time",
        "speculation",
        "if self._lag.credit_seconds < 0:",
        "if False:",
        TESTS,
    ),
    Mutation(
        "speculation: what the draft model proposed is not compared",
        "batch",
        "yield tuple(islice(proposed, len(drafts))) if self.drafts else drafts",
        "yield drafts",
        TESTS,
    ),
    Mutation(
        "speculation: a row whose draft model was wrong is never tried again",
        "speculation",
        "waited = [request for request, row in rows if row.has_waited]",
        "waited: list[Request] = []",
        TESTS,
    ),
)
