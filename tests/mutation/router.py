"""Lines of the router by which requests find an engine, each with a way to break it."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

PICK: Final = ("test_pick",)
AFFINITY: Final = ("test_affinity",)
FAULTS: Final = ("test_faults",)
PAIRS: Final = ("test_pairs",)

ROUTER_MUTATIONS: Final = (
    Mutation(
        "router: an engine has the role of its pool, whatever it says",
        "engines",
        "return self.endpoint.role if reported is Role.MIXED else reported",
        "return self.endpoint.role",
        ("test_engines",),
        package="router",
    ),
    Mutation(
        "router: an engine that refuses another role is asked without a pause",
        "pool_roles",
        "            if now >= self._not_before.get(engine.key, now):",
        "            if True:",
        ("test_pool_roles",),
        package="router",
    ),
    Mutation(
        "router: engines that leave are asked to take another role",
        "pool_roles",
        "engine.endpoint.phase is not Phase.READY or received.report.draining",
        "False",
        ("test_pool_roles",),
        package="router",
    ),
    Mutation(
        "router: an engine that failed a request gets it again",
        "pick",
        "candidates = [engine for engine in ready if engine.key not in tried]",
        "candidates = ready",
        PICK,
        package="router",
    ),
    Mutation(
        "router: the most loaded of those drawn is picked",
        "pick",
        "chosen = min(drawn, key=order)",
        "chosen = max(drawn, key=order)",
        PICK,
        package="router",
    ),
    Mutation(
        "router: the same engines are drawn every time",
        "pick",
        "left.pop(int(number * len(left)))",
        "left.pop(0)",
        PICK,
        package="router",
    ),
    Mutation(
        "router: engines that cannot hand over to each other are a pair",
        "pick",
        "decodes = [engine for engine in decodes if engine.hands_over == prefill.hands_over]",
        "decodes = list(decodes)",
        PICK,
        package="router",
    ),
    Mutation(
        "router: a prefill engine is picked before it has said where it listens",
        "pick",
        "prefills = [engine for engine in prefills if engine.bootstrap_port is not None]",
        "prefills = list(prefills)",
        PICK,
        package="router",
    ),
    Mutation(
        "router: a prefix is worth any load",
        "pick",
        "if load > other + affinity.margin or load >= FULL > other:",
        "if load >= FULL > other:",
        AFFINITY,
        package="router",
    ),
    Mutation(
        "router: a prefix is worth waiting for a full engine",
        "pick",
        "if load > other + affinity.margin or load >= FULL > other:",
        "if load > other + affinity.margin:",
        AFFINITY,
        package="router",
    ),
    Mutation(
        "router: our own requests count twice",
        "engines",
        "others = max(0, report.requests - received.own_inflight)",
        "others = report.requests",
        PICK,
        package="router",
    ),
    Mutation(
        "router: an engine without pages has room",
        "engines",
        "if not report.has_pages:",
        "if False:",
        PICK,
        package="router",
    ),
    Mutation(
        "router: an engine without a report gets every request",
        "engines",
        "return average.load + max(0.0, engine.inflight - average.inflight) / average.slots",
        "return average.load",
        PICK,
        package="router",
    ),
    Mutation(
        "router: an engine that drains gets new requests",
        "engines",
        "if engine.received is not None and engine.received.report.draining:",
        "if False:",
        PICK,
        package="router",
    ),
    Mutation(
        "router: an engine with a full queue is taken for broken",
        "forward",
        "if failure.reason not in ENGINE_NOT_AT_FAULT:",
        "if True:",
        FAULTS,
        package="router",
    ),
    Mutation(
        "router: full queues everywhere are waited for",
        "forward",
        "if failure is not None and (passes or now >= deadline):",
        "if failure is not None and now >= deadline:",
        FAULTS,
        package="router",
    ),
    Mutation(
        "router: a request that breaks engines breaks them all",
        "forward",
        "if self.caused >= MAX_SUCH_FAILURES:",
        "if False:",
        (*FAULTS, *PAIRS),
        package="router",
    ),
    Mutation(
        "router: the decode engine is blamed for the prompt's",
        "forward",
        "if failure.reason in PREFILL_AT_FAULT and target.prefill is not None:",
        "if False:",
        PAIRS,
        package="router",
    ),
    Mutation(
        "router: only one of two queues may be the full one",
        "forward",
        "return [self.met, self.tried, *([others] if self.queue_is_full else [])]",
        "return [self.met, self.tried]",
        PAIRS,
        package="router",
    ),
    Mutation(
        "router: the engine that is not at fault is left out of the second pair",
        "forward",
        "return [self.met, self.tried, *([others] if self.queue_is_full else [])]",
        "return [self.met, *([others] if self.queue_is_full else [])]",
        PAIRS,
        package="router",
    ),
    Mutation(
        "router: an answer goes on with another model",
        "engines",
        "return self.takes_private_calls and own_identity == identity",
        "return self.takes_private_calls",
        ("test_resuming",),
        package="router",
    ),
)
