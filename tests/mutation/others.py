"""Lines outside the scheduler that answers, credit and refusals hang on."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

OTHERS: Final = (
    Mutation(
        "sampling: a position has no randomness of its own",
        "randomness",
        "_mix(_mix(seeds.view(np.uint64)) ^ _mix(positions.view(np.uint64) + _GOLDEN))",
        "_mix(_mix(seeds.view(np.uint64)))",
        ("test_draw",),
        package="engine/sampling",
    ),
    Mutation(
        "sampling: top_p keeps a token too few",
        "nucleus",
        "last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1)",
        "last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1) - 1",
        ("test_nucleus",),
        package="layers",
    ),
    Mutation(
        "sampling: an end is forbidden one token too long",
        "bias",
        "held = (at >= 0) & (positions[at] < self._all.until)",
        "held = (at >= 0) & (positions[at] <= self._all.until)",
        ("test_sampling_table",),
        package="engine/sampling",
    ),
    Mutation(
        "sampling: a row's edits outlive it",
        "bias",
        "if self._of_row.pop(row, None):",
        "if self._of_row.get(row):",
        ("test_sampling_table",),
        package="engine/sampling",
    ),
    Mutation(
        "outbox: credit is not spent",
        "outbox",
        "account.credit -= len(paid.token_ids)",
        "pass",
        ("test_outbox",),
        package="engine",
    ),
    Mutation(
        "outbox: what waited comes last",
        "outbox",
        "tokens, scores = self.withheld + delta.token_ids,",
        "tokens, scores = delta.token_ids + self.withheld,",
        ("test_outbox",),
        package="engine",
    ),
    Mutation(
        "client: a request's choices are counted as one",
        "engine_client",
        "if error := queue_full(ready, len(self._unfinished), choices):",
        "if error := queue_full(ready, len(self._unfinished), 1):",
        ("test_refusals",),
        package="server",
    ),
    Mutation(
        "client: what has ended is held for ever",
        "engine_client",
        "self._ended(delta.request_id)\n                    if stream",
        "pass\n                    if stream",
        ("test_refusals",),
        package="server",
    ),
    Mutation(
        "grammars: an accident is held against a grammar at once",
        "cache",
        "if entry.accident and self._first_of(entry.key):",
        "if entry.accident and self._first_of(entry.key) and False:",
        ("../test_grammar_queue",),
        package="grammar/compile",
    ),
    Mutation(
        "grammars: one that comes again is counted twice",
        "cache",
        "self._bytes -= _size(known)",
        "pass",
        ("test_grammar_cache",),
        package="grammar/compile",
    ),
    Mutation(
        "grammars: an abandoned thread goes on with the calls behind",
        "uninterruptible_calls",
        "                    self._abandoned = True\n",
        "",
        ("test_uninterruptible_calls",),
        package="grammar/follow",
    ),
    Mutation(
        "grammars: tokens that were drawn and not kept stay",
        "mask_worker",
        "        if self._accepted > kept:\n",
        "        if False:\n",
        ("test_matchers",),
        package="grammar/follow",
    ),
)
