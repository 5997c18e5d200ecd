"""Lines of the prefix tree and of what requests hold, each with a way to break it. The tests must
notice every one."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import CACHE, FAILURES, PROPERTIES, Mutation

TREE: Final = ("test_prefix_cache", "test_prefix_cache_properties")
EVICTION: Final = ("test_prefix_cache",)

CACHE_MUTATIONS: Final = (
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
        "prefix_cache",
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
        "prefix_cache",
        "return (node.uses > 1) * TICKS + node.used",
        "return (node.uses > 0) * TICKS + node.used",
        EVICTION,
    ),
    Mutation(
        "eviction: the configured order is not used",
        "kv_allocator",
        "PrefixCache(settings.page_size, EVICTIONS[settings.eviction])",
        "PrefixCache(settings.page_size)",
        EVICTION,
    ),
    Mutation(
        "kv: the whole prompt is found, its last token too",
        "request",
        "(len(self.token_ids) - 1) // page_size",
        "len(self.token_ids) // page_size",
        CACHE,
    ),
    Mutation(
        "kv: salts share prefixes",
        "kv_allocator",
        "self._cache.match(request.namespace, request.key, most)",
        'self._cache.match("", request.key, most)',
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "kv: a row is not told that its pages were replaced",
        "kv_allocator",
        "self._replaced.append(PagesReplaced(row_of(request), first, tuple(canonical)))",
        "pass",
        CACHE,
    ),
    Mutation(
        "kv: duplicates are kept",
        "kv_allocator",
        "self._defer_free(DeferredFree(duplicates), request)",
        "pass",
        CACHE,
    ),
    Mutation(
        "kv: cached pages are freed with a request's own",
        "kv_allocator",
        "own = request.page_ids[lock.pages :]",
        "own = request.page_ids",
        CACHE,
    ),
    Mutation(
        "kv: the lock is not given back",
        "kv_allocator",
        "DeferredFree(own, lock=lock, trusted=trusted)",
        "DeferredFree(own, trusted=trusted)",
        CACHE,
    ),
    Mutation(
        "kv: a row of a step in flight is handed out",
        "kv_allocator",
        "        if fences:\n",
        "        if fences and freed.row is None:\n",
        ("test_peers_failures",),
    ),
    Mutation(
        "kv: pages of a step in flight are handed out",
        "kv_allocator",
        "        if fences:\n",
        "        if fences and freed.row is not None:\n",
        FAILURES,
    ),
    Mutation(
        "kv: pages of a transfer are handed out",
        "kv_allocator",
        "if owner.transfers:",
        "if False:",
        ("test_pages",),
    ),
    Mutation(
        "kv: a lease ends with the first of its fences",
        "kv_allocator",
        "if not lease.fences:",
        "if True:",
        ("test_pages",),
    ),
    Mutation(
        "kv: the runner does not hear of a row that came free",
        "kv_allocator",
        "self._dropped_rows.append(freed.row)",
        "pass",
        PROPERTIES,
    ),
    Mutation(
        "kv: what a broken row computed serves others",
        "kv_allocator",
        "release = self._cache.unlock if freed.trusted else self._cache.forget",
        "release = self._cache.unlock",
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "sharing: salts wait for each other",
        "admission_bounds",
        "other.key.startswith(head) and other.namespace == request.namespace",
        "other.key.startswith(head)",
        ("test_scheduler_prefix",),
    ),
    Mutation(
        "tree: what a flush took is still thought to be there",
        "prefix_cache",
        "        self._epoch += 1\n        self._version += 1\n",
        "        self._epoch += 1\n",
        TREE,
    ),
    Mutation(
        "tree: what eviction took is still thought to be there",
        "prefix_cache",
        "        self._version += 1\n        left = len(node.page_ids) - pages\n",
        "        left = len(node.page_ids) - pages\n",
        TREE,
    ),
    Mutation(
        "step: a prefix is taken as it was before another one cut it",
        "kv_allocator",
        "return planned if self._cache.has(planned) else self.match(request)",
        "return planned",
        CACHE,
    ),
    Mutation(
        "kv: a request's pages are known by other tokens than its own",
        "request",
        "return self.key[first * TOKEN_BYTES : last * TOKEN_BYTES]",
        "return self.key[: (last - first) * TOKEN_BYTES]",
        CACHE,
    ),
    Mutation(
        "host tier: what is evicted is not copied out",
        "host_tier",
        "                self._saved.append((node.page_ids[index], page.slot))",
        "                pass",
        ("test_host_tier",),
    ),
    Mutation(
        "host tier: a page that is not as it was written is used",
        "host_tier",
        "if page.slot in bad), len(load.pages))",
        "if False), len(load.pages))",
        ("test_host_tier",),
    ),
    Mutation(
        "host tier: a slot is free while a copy reads it",
        "host_index",
        "        if page.dropped and not page.readers:\n            self.free(page.slot)",
        "        if page.dropped:\n            self.free(page.slot)",
        ("test_host_tier",),
    ),
)
