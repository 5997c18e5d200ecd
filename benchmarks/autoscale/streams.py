"""Streams of requests made up from a seed: gaps from steady to bursty, log-normal lengths, and a
course of the rate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice_simulator.autoscale.shapes import formed
from sluice_simulator.traces.request import Trace, TraceRequest

SECONDS: Final = 5400.0
"""Length of a stream."""
SPREAD: Final = 0.8
"""Standard deviation of the logarithm of a length."""
MAX_TOKENS: Final = 8192
"""Longest prompt and longest answer: an idle engine computes it within the promise."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Parameters of a stream."""

    law: str
    """Law of the gaps between requests: `gamma` or `weibull`."""
    variation: float
    """Standard deviation of the gaps, divided by their mean: 1 is a Poisson stream."""
    course: str | None = None
    """Form of the rate over the stream's length; None: constant."""
    rate: float = 4.0
    """Mean requests per second."""
    prompt_tokens: int = 800
    """Median length of a prompt."""
    output_tokens: int = 150
    """Median length of an answer."""


STREAMS: Final[Mapping[str, Stream]] = {
    "poisson": Stream("gamma", 1.0),
    "gamma-4": Stream("gamma", 4.0),
    "weibull-2-diurnal": Stream("weibull", 2.0, "diurnal"),
    "poisson-steps": Stream("gamma", 1.0, "steps", 3.0),
    "gamma-0.5": Stream("gamma", 0.5, None, 3.0, 1000, 250),
    "weibull-6": Stream("weibull", 6.0, None, 5.0, 600, 100),
    "gamma-3-diurnal": Stream("gamma", 3.0, "diurnal", 3.0, 600, 300),
    "weibull-1.5-steps": Stream("weibull", 1.5, "steps", 3.5, 1000, 100),
}


def stream_trace(name: str) -> Trace:
    """Trace of one of `STREAMS`; the name is the seed."""
    stream, draw = STREAMS[name], random.Random(name)
    gap, now, requests = _gaps(stream, draw), 0.0, []
    while (now := now + gap()) < SECONDS:
        lengths = (_length(draw, stream.prompt_tokens), _length(draw, stream.output_tokens))
        requests.append(TraceRequest(now, *lengths))
    trace = Trace(name, tuple(requests))
    return formed(trace, stream.course) if stream.course else trace


def _length(draw: random.Random, median: int) -> int:
    return min(MAX_TOKENS, max(1, round(draw.lognormvariate(math.log(median), SPREAD))))


def _gaps(stream: Stream, draw: random.Random) -> Callable[[], float]:
    """Draws gaps with the stream's mean and variation."""
    squared = stream.variation * stream.variation
    if stream.law == "gamma":
        return lambda: draw.gammavariate(1 / squared, squared / stream.rate)
    shape = weibull_shape(stream.variation)
    scale = 1 / stream.rate / math.gamma(1 + 1 / shape)
    return lambda: draw.weibullvariate(scale, shape)


def weibull_shape(variation: float) -> float:
    """Shape of the Weibull law with that coefficient of variation, between 0.1 and 10, by
    bisection."""
    low, high = 0.1, 10.0
    for _ in range(60):
        shape = (low + high) / 2
        ratio = math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)) - 1
        low, high = (shape, high) if ratio > variation * variation else (low, shape)
    return low
