"""Lines of the scheduler, each with a way to break it. The tests must notice every one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCHEDULER: Final = "runtime/sluice_runtime/scheduler"
TESTS: Final = "tests/runtime/scheduler"


@dataclass(frozen=True)
class Mutation:
    """`before` stands once in the module and becomes `after`; one of `tests` must fail then."""

    what: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]


PROPERTIES: Final = ("test_scheduler_properties",)
CACHE: Final = ("test_scheduler_prefix", "test_scheduler_properties")
TREE: Final = ("test_prefix_cache", "test_prefix_cache_properties")
EVICTION: Final = ("test_eviction",)
FAILURES: Final = ("test_peers_failures", "test_scheduler_properties")

MUTATIONS: Final = (
    Mutation(
        "admission: the answer is not weighed",
        "admission",
        "return extend + answer + self._page_size < rem_total",
        "return extend + self._page_size < rem_total",
        ("test_admission",),
    ),
    Mutation(
        "admission: as much as is left is admitted, not less",
        "admission",
        "return extend + answer + self._page_size < rem_total",
        "return extend + answer + self._page_size <= rem_total",
        ("test_admission",),
    ),
    Mutation(
        "admission: a locked prefix still counts as room",
        "admission",
        "if pages + locked_pages > self._available_pages:",
        "if pages > self._available_pages:",
        ("test_admission",),
    ),
    Mutation(
        "admission: a locked prefix still counts for what comes after",
        "admission",
        "rem_total = self._rem_total - locked_pages * self._page_size",
        "rem_total = self._rem_total",
        ("test_admission",),
    ),
    Mutation(
        "admission: a cut inside a page",
        "admission",
        "return (start + max(budget, 0)) // self._page_size * self._page_size, True",
        "return start + max(budget, 0), True",
        ("test_admission",),
    ),
    Mutation(
        "admission: others take all of a long prompt's steps but a page",
        "prefill_share",
        "half = -(-(budget - cut.lead_tokens) // 2)",
        "half = 0",
        ("test_prefill_share",),
    ),
    Mutation(
        "admission: what is kept for a long prompt is not given back",
        "admission",
        "self._spend(-self._share.kept_tokens, -self._share.kept_tokens)",
        "pass",
        ("test_prefill_share",),
    ),
    Mutation(
        "joining: what others had beside a long prompt is not counted",
        "joining",
        "2 * own - sum(item.end - item.start for item in items)",
        "own",
        ("test_prefill_share",),
    ),
    Mutation(
        "admission: decode rows take the whole chunk",
        "admission",
        "None if chunk is None else max(chunk - room.decode_rows, share)",
        "None if chunk is None else chunk - room.decode_rows",
        ("test_admission", "test_peers_failures"),
    ),
    Mutation(
        "tree: a lock covers the last node only",
        "prefix_cache",
        "while node is not stop:",
        "if node is not stop:",
        TREE,
    ),
    Mutation(
        "tree: locked nodes are evicted",
        "prefix_cache",
        "if node.locks or node.children or not node.page_ids:",
        "if node.children or not node.page_ids:",
        TREE,
    ),
    Mutation(
        "tree: the upper part of a split path loses its locks",
        "prefix_cache",
        "upper.locks, upper.used = node.locks, node.used",
        "upper.locks, upper.used = 0, node.used",
        TREE,
    ),
    Mutation(
        "tree: a match is longer than it may be",
        "prefix_cache",
        "if key.startswith(node.key, at) and at + len(node.key) <= end:",
        "if key.startswith(node.key, at):",
        TREE,
    ),
    Mutation(
        "tree: a flushed path goes on growing",
        "prefix_cache",
        "self._epoch += 1",
        "self._epoch += 0",
        TREE,
    ),
    Mutation(
        "tree: the newest goes first",
        "eviction",
        "return node.used",
        "return -node.used",
        TREE,
    ),
    Mutation(
        "eviction: uses are not counted",
        "prefix_cache",
        "node.uses += 1",
        "node.uses += 0",
        EVICTION,
    ),
    Mutation(
        "eviction: a split prefix was never used",
        "prefix_cache",
        "upper.made, upper.uses = node.made, node.uses",
        "upper.made = node.made",
        EVICTION,
    ),
    Mutation(
        "eviction: the first use counts as a second",
        "eviction",
        "return (node.uses > 1) * TICKS + node.used",
        "return (node.uses > 0) * TICKS + node.used",
        EVICTION,
    ),
    Mutation(
        "eviction: the configured order is not used",
        "holdings",
        "PrefixCache(settings.page_size, EVICTIONS[settings.eviction])",
        "PrefixCache(settings.page_size)",
        EVICTION,
    ),
    Mutation(
        "holdings: the whole prompt is found, its last token too",
        "holdings",
        "(len(request.token_ids) - 1) // self._page_size",
        "len(request.token_ids) // self._page_size",
        CACHE,
    ),
    Mutation(
        "holdings: salts share prefixes",
        "holdings",
        "self._cache.match(request.namespace, request.key, self._most_matched(request))",
        'self._cache.match("", request.key, self._most_matched(request))',
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "holdings: a row is not told that its pages were replaced",
        "holdings",
        "self._replaced.append(PagesReplaced(row_of(request), first, tuple(canonical)))",
        "pass",
        CACHE,
    ),
    Mutation(
        "holdings: duplicates are kept",
        "holdings",
        "self._retire(Retired(duplicates))",
        "pass",
        CACHE,
    ),
    Mutation(
        "holdings: cached pages are freed with a request's own",
        "holdings",
        "Retired(request.page_ids[lock.pages :], row_of(request), lock, trusted)",
        "Retired(request.page_ids, row_of(request), lock, trusted)",
        CACHE,
    ),
    Mutation(
        "holdings: the lock is not given back",
        "holdings",
        "Retired(request.page_ids[lock.pages :], row_of(request), lock, trusted)",
        "Retired(request.page_ids[lock.pages :], row_of(request))",
        CACHE,
    ),
    Mutation(
        "holdings: pages of a step in flight are handed out",
        "holdings",
        "if self._in_flight:",
        "if self._in_flight and retired.row is None:",
        FAILURES,
    ),
    Mutation(
        "holdings: the runner does not hear of a row that came free",
        "holdings",
        "self._dropped_rows.append(retired.row)",
        "pass",
        PROPERTIES,
    ),
    Mutation(
        "holdings: what a broken row computed serves others",
        "holdings",
        "give = self._cache.unlock if retired.trusted else self._cache.forget",
        "give = self._cache.unlock",
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "sharing: salts wait for each other",
        "prefix_sharing",
        "other.key.startswith(head) and other.namespace == request.namespace",
        "other.key.startswith(head)",
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "retraction: longest answers go first",
        "retraction",
        "key=lambda r: (r.output_tokens, -len(r.token_ids))",
        "key=lambda r: (-r.output_tokens, -len(r.token_ids))",
        ("test_retraction",),
    ),
    Mutation(
        "retraction: one page short is good enough",
        "retraction",
        "    if wanted <= available_pages:\n        return RetractionPlan()",
        "    if wanted <= available_pages + 1:\n        return RetractionPlan()",
        ("test_retraction", "test_scheduler_properties"),
    ),
    Mutation(
        "queue: a retracted request waits behind all others",
        "waiting",
        "self._requests.move_to_end(request.request_id, last=False)",
        "pass",
        ("test_retraction", "test_scheduler_parts"),
    ),
    Mutation(
        "step: a chunk that more follow samples a token",
        "writing",
        "samples=not item.cut",
        "samples=True",
        FAILURES,
    ),
    Mutation(
        "step: requests are sent back while a step runs",
        "scheduler",
        "if leaving.needed and self._flights:",
        "if leaving.needed and self._step < 0:",
        FAILURES,
    ),
    Mutation(
        "step: a row whose last token is in flight runs again",
        "scheduler",
        "return [request for request in running if request.remaining_tokens > 0]",
        "return running",
        ("test_scheduler",),
    ),
    Mutation(
        "results: an aborted request still gets its token",
        "scheduler",
        "if request.phase is ENDED or request.aborting:",
        "if request.phase is ENDED:",
        FAILURES,
    ),
    Mutation(
        "results: an aborted row goes on decoding",
        "scheduler",
        "                or request.aborting\n",
        "",
        FAILURES,
    ),
    Mutation(
        "results: the last token of an answer is one like the others",
        "scheduler",
        "or len(tokens) + 1 >= request.most_tokens",
        "or len(tokens) >= request.most_tokens",
        ("test_scheduler",),
    ),
    Mutation(
        "results: a decode row's stop token is one like the others",
        "request",
        "self.special_tokens = self.stop_token_ids | {NO_TOKEN}",
        "self.special_tokens = frozenset({NO_TOKEN})",
        ("test_scheduler",),
    ),
    Mutation(
        "results: a row that is not finite goes on decoding",
        "request",
        "self.special_tokens = self.stop_token_ids | {NO_TOKEN}",
        "self.special_tokens = self.stop_token_ids",
        ("test_scheduler",),
    ),
    Mutation(
        "holdings: a request's pages are known by other tokens than its own",
        "request",
        "return self.key[first * TOKEN_BYTES : last * TOKEN_BYTES]",
        "return self.key[: (last - first) * TOKEN_BYTES]",
        CACHE,
    ),
    Mutation(
        "results: the stop token is not looked for",
        "scheduler",
        "if asked and token in request.stop_token_ids:",
        "if False:",
        ("test_scheduler",),
    ),
    Mutation(
        "results: a finished chunk is not shared at once",
        "scheduler",
        "            self._holdings.keep(request)",
        "            pass",
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "policies: nobody goes by age",
        "policies/ageing",
        "if overdue and since >= ADMISSIONS_PER_AGED - 1:",
        "if False:",
        ("test_policies",),
    ),
    Mutation(
        "policies: an admission by age uses up a turn",
        "policies/ageing",
        "if request.request_id in self._aged:",
        "if False:",
        ("test_policies",),
    ),
    Mutation(
        "policies: a key keeps its turn for ever",
        "policies/by_key",
        "left = PICKS - turn.picks if unfinished else PICKS",
        "left = PICKS",
        ("test_policies",),
    ),
    Mutation(
        "policies: who finds nothing in the cache goes before who does",
        "policies/by_prefix",
        "LAST: Final = (1, 0)",
        "LAST: Final = (-1_000_000, 0)",
        ("test_policies",),
    ),
    Mutation(
        "policies: adaptive orders by prefix where hardly any is cached",
        "policies/adaptive",
        "> WORTH_FINDING * tokens",
        ">= 0",
        ("test_policies",),
    ),
    Mutation(
        "preemption: the same one is sent back again and again",
        "preemption",
        "return not request.preempted and ",
        "return ",
        ("test_preemption",),
    ),
    Mutation(
        "preemption: the oldest goes first",
        "preemption",
        "newest_first = reversed(list(running))",
        "newest_first = list(running)",
        ("test_preemption",),
    ),
    Mutation(
        "cost: a few slow steps are forgotten",
        "residuals",
        "return self._sorted[-over]",
        "return self._normal_bound(share)",
        ("test_residuals", "test_cost_model"),
    ),
    Mutation(
        "cost: a machine that became slow is reckoned slow twice",
        "cost_model",
        "self._residuals.rescale(factor)",
        "pass",
        ("test_cost_model",),
    ),
    Mutation(
        "chunk: steps that take longer than predicted are not reckoned with",
        "chunk_budget",
        "left = self._target.seconds / self._cost.slack(self._share) - base",
        "left = self._target.seconds - base",
        ("test_chunk_budget",),
    ),
    Mutation(
        "chunk: what the prompt's own tokens attend to is left out",
        "chunk_budget",
        "linear = token + product * (view.computed_tokens + 0.5)",
        "linear = token",
        ("test_chunk_budget",),
    ),
    Mutation(
        "chunk: a step may be as large as the prediction allows",
        "chunk_budget",
        "if fits > (reach := self._within_seen()):",
        "if fits > (reach := self._most):",
        ("test_chunk_budget",),
    ),
    Mutation(
        "cost: a change of the machine is taken for outliers",
        "cost_model",
        "if len(self._outliers) < CHANGE_STEPS:",
        "if len(self._outliers) <= CHANGE_STEPS:",
        ("test_cost_model",),
    ),
    Mutation(
        "cost: coefficients may be negative",
        "cost_model",
        "found[i] = better if better > 0.0 else 0.0",
        "found[i] = better",
        ("test_cost_model",),
    ),
    Mutation(
        "pace: a rest counts as part of a step",
        "pacing",
        "self._landed_seconds = None\n",
        "pass\n",
        ("test_chunk_budget",),
    ),
)
