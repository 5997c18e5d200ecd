"""Speeds that engines report, compared between the two revisions of a canary: whether the new one
is slower at equal work, and whether its engines get more requests.

Pure. Loads of the two differ: a slower engine has more rows, and prompts differ by chance. So the
durations that the engines' cost models predict for the same steps are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import mul
from statistics import fmean, median
from typing import Final, NamedTuple

from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import Amounts, StepCosts, StepShapes

from sluice_operator.scaled import LOOKS, Look

SLOWER: Final = 1.15
"""Ratio of durations above which the new revision is slower."""
COMPARISONS: Final = LOOKS - 3
"""Fewest comparisons, of `LOOKS` - 1, that show a revision slower."""
CONTEXTS: Final = 8.0
"""Ratio of contexts of a token above which steps are not compared: a cost model is linear, and
devices are not."""
MORE: Final = 1.25
"""Ratio of requests that an engine gets above which it has more of them."""


class _Kind(NamedTuple):
    name: str
    """Name of the kind of steps, as messages have it."""
    shapes: Callable[[StepCosts], StepShapes | None]


class _Measured(NamedTuple):
    """One engine."""

    seconds: Amounts
    mean: Amounts
    """Amounts of the engine's mean step."""


class Speed(NamedTuple):
    """What looks show of the speed of new revisions."""

    slower: str
    """Text about a kind of step that takes longer; empty: none does, or too few looks compare."""
    is_compared: bool
    """Whether a kind of step of every pool that changes was compared."""


NOT_COMPARED: Final = Speed("", is_compared=False)

DECODE: Final = _Kind("a step without prompts", lambda costs: costs.decode)
PREFILL: Final = _Kind("a step with prompts", lambda costs: costs.prefill)


def compared_speed(looks: Sequence[Look], shares: Mapping[Role, CanaryShare]) -> Speed:
    """Whether a kind of step takes the new revision of a pool more than `SLOWER` times as long as
    the former one.

    The steps are the mean step of each revision. Every look shows a difference at one of the two,
    and the median of the looks at both: an extrapolation that fails seldom does so both ways."""
    compared = []
    for role, share in shares.items():
        if share.revision == share.former:
            continue
        compared.append(False)
        for kind in (DECODE, PREFILL):
            ratios = [*_ratios(looks, role, share, kind)]
            if len(ratios) < COMPARISONS:
                continue
            compared[-1] = True
            least = min(map(median, zip(*ratios, strict=True)))
            if least > SLOWER and all(max(ratio) > SLOWER for ratio in ratios):
                text = f"pool {role}: {kind.name} takes {least:.2f} times as long or longer"
                return Speed(text, is_compared=True)
    return Speed("", all(compared))


def has_no_more_requests(looks: Sequence[Look], shares: Mapping[Role, CanaryShare]) -> bool:
    """Whether no changed pool's new engines have received more requests than its former ones, over
    the looks. With more requests an equal engine is late, too; late with as many or fewer is the
    revision's own fault, however long its queue is. False without requests."""
    changed = [item for item in shares.items() if item[1].revision != item[1].former]
    requests = [
        (_requests(looks, role, share.revision), _requests(looks, role, share.former))
        for role, share in changed
    ]
    return any(max(pair) for pair in requests) and all(new <= MORE * old for new, old in requests)


def _ratios(
    looks: Sequence[Look], role: Role, share: CanaryShare, kind: _Kind
) -> Iterator[tuple[float, float]]:
    """Durations of the new revision over those of the former, at the mean step of each, for each
    look in which both have made such steps since the look before."""
    for before, look in pairwise(looks):
        steps = {(e.name, e.epoch): made.steps for e, _, made in _measured(before.engines, kind)}
        new, former = (
            [
                _Measured(costs.seconds, made.mean)
                for e, costs, made in _measured(_of(look, role, revision), kind)
                if made.steps > steps.get((e.name, e.epoch), made.steps)
            ]
            for revision in (share.revision, share.former)
        )
        if not (new and former):
            continue
        means = _mean_step(new), _mean_step(former)
        if _are_similar(*means) and all(_duration(former, mean) for mean in means):
            one, other = (_duration(new, mean) / _duration(former, mean) for mean in means)
            yield one, other


def _measured(
    engines: Iterable[EngineSample], kind: _Kind
) -> Iterator[tuple[EngineSample, StepCosts, StepShapes]]:
    """The engines that report steps of a kind."""
    for engine in engines:
        costs = engine.figures.costs
        if costs is not None and (made := kind.shapes(costs)) is not None:
            yield engine, costs, made


def _mean_step(engines: Sequence[_Measured]) -> list[float]:
    return [fmean(amounts) for amounts in zip(*(e.mean for e in engines), strict=True)]


def _duration(engines: Sequence[_Measured], step: Sequence[float]) -> float:
    """Seconds that a step takes; the median of the engines."""
    return median(float(sum(map(mul, engine.seconds, step))) for engine in engines)


def _are_similar(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the prompt tokens of two steps attend to similar numbers of tokens, and their decode
    rows too."""
    for tokens, attended in ((1, 2), (3, 4)):
        low, high = sorted((one[attended] * other[tokens], other[attended] * one[tokens]))
        if high > CONTEXTS * low:
            return False
    return True


def _requests(looks: Sequence[Look], role: Role, revision: str) -> float:
    """Requests that an engine of a revision has received between two looks, on average. An engine
    at its limit finishes no more of them, so the ones in it count."""
    received = []
    for before, look in pairwise(looks):
        earlier = {(e.name, e.epoch): _received(e) for e in before.engines}
        received += [
            _received(engine) - earlier[engine.name, engine.epoch]
            for engine in _of(look, role, revision)
            if (engine.name, engine.epoch) in earlier
        ]
    return fmean(received) if received else 0.0


def _received(engine: EngineSample) -> int:
    """Requests since the engine's epoch began: finished, queued and running ones."""
    return engine.figures.finished_requests_total + engine.figures.requests


def _of(look: Look, role: Role, revision: str) -> list[EngineSample]:
    return [e for e in look.engines if (e.role, e.revision) == (role, revision)]
