"""Speeds that engines report, compared between the two revisions of a canary: whether the new one
is slower at any load, and whether the loads of both are alike.

Pure. A speed is the median over a revision's engines of one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Final

from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import CanaryShare, Role

from sluice_operator.scaled import LOOKS, Look

SLOWER: Final = 1.15
"""Ratio of times above which the new revision is slower."""
ALIKE: Final = 0.75
"""Least ratio of the smaller to the larger of two loads that are alike."""

Ratio = Callable[[Sequence[EngineSample], Sequence[EngineSample]], float | None]
"""Time of the new engines over that of the former ones; None: they cannot be compared."""


def slower(looks: Sequence[Look], shares: Mapping[Role, CanaryShare]) -> str:
    """Text about a speed in which every one of the last looks has the new revision slower by more
    than `SLOWER`; empty: there is none, or too few looks compare the two."""
    for role, share in shares.items():
        if share.revision == share.former:
            continue
        for name, ratio in _ratios_of(role):
            ratios = [ratio(*sides) for sides in _sides(looks, role, share)]
            if len(ratios) >= LOOKS - 1 and all(r is not None and r > SLOWER for r in ratios):
                least = min(r for r in ratios if r is not None)
                return f"pool {role}: {name} takes {least:.2f} times as long or longer"
    return ""


def has_equal_load(looks: Sequence[Look], shares: Mapping[Role, CanaryShare]) -> bool:
    """Whether engines of both revisions of each changed pool have alike numbers of requests on
    average over the looks; False without requests."""
    return bool(looks) and all(
        _are_alike(
            *(
                mean([e.figures.requests for look in looks for e in _of(look, role, name)] or [0])
                for name in (share.revision, share.former)
            )
        )
        for role, share in shares.items()
        if share.revision != share.former
    )


def _sides(
    looks: Sequence[Look], role: Role, share: CanaryShare
) -> Iterator[tuple[list[EngineSample], list[EngineSample]]]:
    """The engines of both revisions in every look but the first, as far as they have computed
    prompts since the look before: a measurement without work is an old one."""
    for before, look in pairwise(looks):
        computed = {(e.name, e.epoch): e.figures.prompt_tokens_total for e in before.engines}
        new, former = (
            [
                engine
                for engine in _of(look, role, name)
                if engine.figures.prompt_tokens_total
                > computed.get((engine.name, engine.epoch), engine.figures.prompt_tokens_total)
            ]
            for name in (share.revision, share.former)
        )
        yield new, former


def _ratios_of(role: Role) -> Iterator[tuple[str, Ratio]]:
    if role is not Role.DECODE:
        yield "a prompt token", _prefill_ratio
    if role is not Role.PREFILL:
        yield "a step of answers", _step_ratio


def _prefill_ratio(new: Sequence[EngineSample], former: Sequence[EngineSample]) -> float | None:
    rates = [
        _median(e.figures.marginal_prefill_tokens_per_second for e in side)
        for side in (former, new)
    ]
    return rates[0] / rates[1] if rates[0] and rates[1] else None


def _step_ratio(new: Sequence[EngineSample], former: Sequence[EngineSample]) -> float | None:
    """None also where the steps of the two have other numbers of rows."""
    rows = [_median(e.figures.running_requests for e in side) or 0 for side in (new, former)]
    times = [_median(e.figures.itl_seconds for e in side) for side in (new, former)]
    return times[0] / times[1] if _are_alike(*rows) and times[0] and times[1] else None


def _of(look: Look, role: Role, revision: str) -> list[EngineSample]:
    return [e for e in look.engines if (e.role, e.revision) == (role, revision)]


def _are_alike(one: float, other: float) -> bool:
    return max(one, other) > 0 and min(one, other) >= ALIKE * max(one, other)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
