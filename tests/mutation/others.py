"""Lines outside the scheduler that answers, credit and refusals hang on."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

OTHERS: Final = (
    Mutation(
        "sampling: a position has no randomness of its own",
        "draw",
        "_mix(_mix(seeds.view(np.uint64)) ^ _mix(positions.view(np.uint64) + _GOLDEN))",
        "_mix(_mix(seeds.view(np.uint64)))",
        ("test_draw",),
        package="engine/sampling",
    ),
    Mutation(
        "sampling: top_p keeps a token too few",
        "draw",
        "last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1)",
        "last = (cumulative < top_p.double()[:, None]).sum(-1).clamp(max=vocabulary - 1) - 1",
        ("test_draw",),
        package="layers",
    ),
    Mutation(
        "sampling: an end is forbidden one token too long",
        "penalties",
        "applies = positions[at] < self._all.until[edit]",
        "applies = positions[at] <= self._all.until[edit]",
        ("test_sampling_table",),
        package="engine/sampling",
    ),
    Mutation(
        "sampling: a row's edits outlive it",
        "penalties",
        "if self.rows.pop(row, None):",
        "if self.rows.get(row):",
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
        ("test_full_queue",),
        package="server",
    ),
    Mutation(
        "client: an engine hangs for ever",
        "engine_client",
        "while silent_looks * _LOOK_SECONDS < SILENCE_SECONDS:",
        "while silent_looks * _LOOK_SECONDS < 10 * SILENCE_SECONDS:",
        ("test_engine_client",),
        package="server",
    ),
    Mutation(
        "client: a process that stood still takes its engine for hung",
        "engine_client",
        "silent_looks = silent_looks + 1 if self._last_message_seconds == last_message else 0",
        "silent_looks = int(self._clock() - last_message)",
        ("test_engine_client",),
        package="server",
    ),
    Mutation(
        "client: a tenant takes the whole queue",
        "engine_client",
        "most = tenant_requests(ready) if tenant else running + queued",
        "most = running + queued",
        ("test_engine_client",),
        package="server",
    ),
    Mutation(
        "policies: tenants do not share",
        "policies/ageing",
        "counts[request.tenant], place, request.tenant",
        "0, place, request.tenant",
        ("policies/test_ageing",),
    ),
    Mutation(
        "client: what has ended is held for ever",
        "engine_client",
        "self._ended(delta.request_id)\n                    if stream",
        "pass\n                    if stream",
        ("test_full_queue",),
        package="server",
    ),
    Mutation(
        "grammars: tokens that were drawn and not kept stay",
        "masks",
        "        if self._taken > answered:",
        "        if False:",
        ("test_masks",),
        package="grammar",
    ),
    Mutation(
        "grammars: an answer with too many states ends",
        "masks",
        "if why is None or _MANY_STATES_SAID not in self._state.get_error():",
        "if True:",
        ("test_masks", "test_given_up"),
        package="grammar",
    ),
)
