"""The margin by which a service is sized, corrected by the share of requests that were late.

Arriving work counts times the margin. It falls slowly from 1 while fewer requests than promised are
late, and rises at once with the late ones: an integral of the late share over minutes with load,
within bounds. It knows only the counts of engines with an `slo`: without one it stays 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sluice_autoscaler.decision import Answered, Margin

MINUTE_SECONDS: Final = 60.0
LOADED_REQUESTS: Final = 10
"""Fewest counted requests of a minute with load."""
KNOWN_MINUTES: Final = 20
"""Fewest minutes with load after which the margin may fall, since lateness comes in bursts."""
KNOWN_REQUESTS: Final = 2000
"""Fewest counted requests after which the margin may fall."""
AIMED_LATE: Final = 0.7
"""Fraction of the allowed late requests at which the margin stays."""
GIVEN: Final = 0.05
"""Most by which the margin falls in a minute: without any late request."""
LEAST: Final = 0.6
BAD_TIMES: Final = 5
"""Times the allowed late requests of a mean minute. A minute with more is a burst, or work of
another kind, for which the pools were too small: all that was learnt is forgotten."""


def next_margin(
    margin: Margin, now: float, answered: Answered, allowed_share: float, *, is_clear: bool
) -> Margin:
    """The margin for the next decision. `answered`: requests since the former one. `allowed_share`:
    fraction of requests that may be late. `is_clear`: no engine starts, ends, moves or is in doubt.
    """
    seconds = now - margin.minute_began_seconds
    if not 0 <= seconds < 2 * MINUTE_SECONDS:
        return _begun(margin, now)
    margin = replace(
        margin,
        minute_requests=margin.minute_requests + answered.requests,
        minute_late=margin.minute_late + answered.requests - answered.in_time,
        minute_is_clear=margin.minute_is_clear and is_clear,
    )
    if seconds < MINUTE_SECONDS:
        return margin
    if margin.minute_requests >= LOADED_REQUESTS:
        margin = _after_minute(margin, allowed_share)
    return _begun(margin, now)


def _begun(margin: Margin, now: float) -> Margin:
    return replace(
        margin, minute_began_seconds=now, minute_requests=0, minute_late=0, minute_is_clear=True
    )


def _after_minute(margin: Margin, allowed_share: float) -> Margin:
    """The margin after a minute with load."""
    minutes, requests = margin.minutes + 1, margin.requests + margin.minute_requests
    if margin.minute_late > BAD_TIMES * allowed_share * requests / minutes:
        return Margin()
    late = margin.late + margin.minute_late
    margin = replace(margin, minutes=minutes, requests=requests, late=late)
    aimed = AIMED_LATE * allowed_share * margin.minute_requests
    change = GIVEN * (margin.minute_late / aimed - 1)
    knows = minutes >= KNOWN_MINUTES and requests >= KNOWN_REQUESTS
    if change < 0 and not (knows and margin.minute_is_clear):
        return margin
    return replace(margin, factor=min(1.0, max(LEAST, margin.factor + change)))


def margin_message(margin: Margin) -> str:
    """Text of a margin below 1; empty for 1."""
    if margin.factor == 1.0:
        return ""
    in_time = Answered(margin.requests, margin.requests - margin.late).in_time_percent
    return f", margin {margin.factor:.2f}: {in_time} % were in time for {margin.minutes} minutes"
