"""Lines of the decision how many engines a pool has, each with a way to break it."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

DECIDE: Final = ("test_decide",)
COMPLAINTS: Final = ("test_complaints",)
BUDGET: Final = ("test_trade", "test_properties")

AUTOSCALER_MUTATIONS: Final = (
    Mutation(
        "autoscaler: a pool shrinks though most reports are old",
        "pool_plan",
        "if reports.unknown > len(reports.counted) and bounded.engines < current:",
        "if False:",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: engines that serve go before pods that start",
        "decide",
        "leaving = pool.replicas - desired - pool.starting - pool.unschedulable",
        "leaving = pool.replicas - desired - pool.unschedulable",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: engines that serve go before pods without a place",
        "decide",
        "leaving = pool.replicas - desired - pool.starting - pool.unschedulable",
        "leaving = pool.replicas - desired - pool.starting",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: an engine that leaves already is chosen to leave",
        "decide",
        'if engine.role is role and engine.condition != "draining"',
        "if engine.role is role",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: the busiest engines go first",
        "decide",
        "tuple(engine.name for engine in sorted(able, key=_work)",
        "tuple(engine.name for engine in sorted(able, key=_work, reverse=True)",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: more pods are asked for while some find no place",
        "pool_plan",
        "if pool.unschedulable and desired > pool.replicas:",
        "if False:",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: without reports a pool falls to its floor",
        "pool_plan",
        'if settings.on_metrics_loss == "Floor":',
        "if True:",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: an engine that only fails counts as one that serves",
        "pool_plan",
        "if not 0 < reports.sick <= len(reports.counted) + reports.unknown:",
        "if True:",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: old reports count",
        "reports",
        "elif engine.age_seconds > STALE_SECONDS:",
        "elif False:",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: engines of which nothing is known are idle",
        "reports",
        "return (len(self.counted) + self.unknown) / len(self.counted) if self.counted else 0.0",
        "return 1.0",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: a pool shrinks at once",
        "stabilise",
        "least = max(desired, *before) if before else desired",
        "least = desired",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: a pool shrinks though nobody looked for a while",
        "stabilise",
        "if not _knows(history, role, now - down_seconds, now):",
        "if False:",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: a pool grows without bound",
        "stabilise",
        "if desired <= most:",
        "if True:",
        DECIDE,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: a pool of two shrinks to one that is full",
        "wants",
        "return grown if grown >= current else min(current, max(grown, shrunk()))",
        "return grown",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: a pool shrinks while none of its engines is ready",
        "decide",
        "if pool.replicas and not pool.ready]",
        "if False]",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: pods that leave hold no GPU",
        "budget",
        "return (self.current + self.surplus) * self.gpus",
        "return self.current * self.gpus",
        (*COMPLAINTS, *BUDGET),
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: one pool's first engine is started where the other's has no room",
        "budget",
        "if _first_engines(claims) > free:",
        "if False:",
        (*COMPLAINTS, *BUDGET),
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: one pool sleeps while the other serves",
        "scale_to_zero",
        "or any(pool.minimum for pool in pools.values()):",
        "or False:",
        COMPLAINTS,
        package="autoscaler",
    ),
    Mutation(
        "autoscaler: a service sleeps after a busy minute",
        "scale_to_zero",
        "return not any(tick.busy for tick in history.since(since))",
        "return True",
        (*DECIDE, *COMPLAINTS),
        package="autoscaler",
    ),
)
