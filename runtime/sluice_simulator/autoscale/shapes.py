"""Other shapes of a trace, and synthetic ramps: the same requests at other times.

A shape keeps order and lengths, and bends time: at twice the mean intensity, requests come twice as
fast. Ramps follow the stages of llm-d's token-aware guide (llm-d/llm-d,
guides/workload-autoscaling/keda-epp-token-aware), with Poisson arrivals from a seed.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from sluice_simulator.autoscale.constants import Constants, ScenePromise
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

BURSTS: Final = ((0.2, 0.3), (0.55, 0.6), (0.8, 0.9))
"""Parts of a trace's length in which requests come `BURST` times as fast as outside."""
BURST: Final = 3.0
BURST_EDGE: Final = 0.02
"""Share of the trace's length in which a burst rises before its part, and falls after it: 70 s of
an hour."""
DIURNAL_SWING: Final = 0.8
"""Swing around the mean rate, as its share. The trace's length is a day, which begins at night."""

STEPS: Final = (1.0, 2.0, 1.0, 3.0, 2.0, 0.5)
"""Rates in equal parts of a trace's length, in a row."""

Intensity = Callable[[float], float]
"""Function from a share of the trace's length to a rate."""


def _diurnal(share: float) -> float:
    return 1 - DIURNAL_SWING * math.cos(2 * math.pi * share)


def _burst(share: float) -> float:
    outside = min(max(began - share, share - ended, 0.0) for began, ended in BURSTS)
    return BURST - (BURST - 1) * min(1.0, outside / BURST_EDGE)


def _steps(share: float) -> float:
    return STEPS[int(share * len(STEPS))]


FORMS: Final[Mapping[str, Intensity]] = {"diurnal": _diurnal, "burst": _burst, "steps": _steps}


def formed(trace: Trace, form: str) -> Trace:
    """The trace in one of `FORMS`, as long as it was."""
    steps = 10_000
    parts = accumulate(FORMS[form]((step + 0.5) / steps) for step in range(steps))
    passed = [0.0, *parts]
    total, length = passed[-1], trace.seconds or 1.0

    def bent(seconds: float) -> float:
        arrivals = seconds / length * total
        at = max(1, bisect_left(passed, arrivals))
        into = (arrivals - passed[at - 1]) / (passed[at] - passed[at - 1])
        return (at - 1 + into) / steps * length

    moved = [replace(r, arrival_seconds=bent(r.arrival_seconds)) for r in trace.requests]
    return Trace(f"{trace.name}, {form}", tuple(moved))


@dataclass(frozen=True, slots=True)
class Stage:
    """A period with equal requests."""

    seconds: float
    rate: float
    """Requests per second."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Ramp:
    """Stages of requests."""

    stages: Sequence[Stage]
    ttft_seconds: float
    """Promised TTFT: the guide's example for such prompts."""


STAGE_SECONDS: Final = (300, 300, 420, 600, 600, 300, 900)


def _ramp(
    prompt_tokens: int, output_tokens: int, rates: Sequence[float], ttft_seconds: float
) -> Ramp:
    pairs = zip(STAGE_SECONDS, rates, strict=True)
    stages = [Stage(seconds, rate, prompt_tokens, output_tokens) for seconds, rate in pairs]
    return Ramp(stages, ttft_seconds)


RAMPS: Final[Mapping[str, Ramp]] = {
    "ramp-balanced": _ramp(2048, 2048, (0.25, 0.5, 0.75, 1.0, 1.5, 0.75, 0.25), 3.0),
    "ramp-prefill": _ramp(8192, 256, (0.15, 0.30, 0.50, 0.80, 1.40, 0.50, 0.15), 8.0),
    # The guide counts half as many requests of this one as of the balanced.
    "ramp-decode": _ramp(256, 4096, (0.125, 0.25, 0.375, 0.5, 0.75, 0.375, 0.125), 2.0),
    # Not of the guide: prompts are most of the work, then both alike, then answers.
    "shift": Ramp(
        (Stage(600, 2.0, 4096, 128), Stage(600, 1.6, 2048, 512), Stage(600, 1.8, 512, 1536)), 5.0
    ),
}
PEAK_PREFILL_TOKENS_PER_SECOND: Final = 2696.0
"""Peak prefill rate of an engine in the guide, by which the ramps' rates are chosen."""


def ramp(name: str, seed: int = 0) -> Trace:
    """Trace of one of `RAMPS`."""
    draw, shape, requests, began = random.Random(seed), RAMPS[name], [], 0.0  # noqa: S311
    for stage in shape.stages:
        at = began + draw.expovariate(stage.rate)
        while at < began + stage.seconds:
            requests.append(TraceRequest(at, stage.prompt_tokens, stage.output_tokens))
            at += draw.expovariate(stage.rate)
        began += stage.seconds
    return trace_of(name, requests)


def ramp_constants(name: str, base: Constants) -> Constants:
    """An engine with the guide's peak rate of prefill, and the ramp's promise."""
    share = base.share * PEAK_PREFILL_TOKENS_PER_SECOND / base.peak_prefill_tokens_per_second
    promise = ScenePromise(RAMPS[name].ttft_seconds, base.promise.itl_seconds)
    return replace(base, share=share, promise=promise)
