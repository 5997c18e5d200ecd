"""Fields of specs before version 0.1.0, and what to write instead; goes with version 0.2.0."""

from __future__ import annotations

from typing import Final

from sluice_contract.error_text import Location

FORMER: Final = {
    "mode": "prefill: {} where it was Disaggregated, and nothing where it was Mixed",
    "pools": "the pool mixed or decode at the top level of spec, the pool prefill as spec.prefill",
    "autoscaling.accelerator": "spec.accelerator",
    "autoscaling.target.queueSeconds": "queueMilliseconds, a thousand times the number",
    "engine.memoryFraction": "memoryPercent, a hundred times the number",
    "engine.scheduleConservativeness": "reservePercent, a hundred times the number",
    "tracing.sampleRatio": "samplePercent, a hundred times the number",
}
"""Path below spec → what to write."""


def instead_of(location: Location) -> str | None:
    """What to write instead of the field at `location` of an object; None: it never was one."""
    path = ".".join(key for key in location if isinstance(key, str) and key != "spec")
    return FORMER.get(path) or FORMER.get(path.removeprefix("prefill."))
