"""Load reports and engine samples by flat names, as tests write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from sluice_autoscaler.sample import EngineSample
from sluice_contract.wire.load import EngineFigures, HandoverQueues, SloCounts

FIGURES: Final = {field.name for field in fields(EngineFigures)}
QUEUES: Final = {f"{field.name}_requests": field.name for field in fields(HandoverQueues)}
SLO: Final = {
    "slo_requests_total": "requests",
    "slo_in_time_total": "in_time",
    "slo_late_requests": "late",
}
PAGES: Final = 100_000


def with_figures(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those of the engine's work as `figures`; `kv_used` is a share of `PAGES`, and
    `prealloc_requests` and the like are its queues."""
    values = dict(values)
    figures = {name: values.pop(name) for name in FIGURES & values.keys()}
    if (used := values.pop("kv_used", None)) is not None:
        figures |= {"kv_pages_total": PAGES, "kv_pages_free": PAGES - round(used * PAGES)}
    if queues := {QUEUES[name]: values.pop(name) for name in QUEUES.keys() & values.keys()}:
        figures["queues"] = HandoverQueues(**queues)
    if slo := {SLO[name]: values.pop(name) for name in SLO.keys() & values.keys()}:
        values["slo"] = SloCounts(**{"requests": 0, "in_time": 0, "late": 0} | slo)
    return values | {"figures": EngineFigures(**figures)}


def changed(engine: EngineSample, **changes: Any) -> EngineSample:
    """`engine` with other figures, by the names above."""
    values = with_figures(changes)
    own = {name: getattr(values["figures"], name) for name in FIGURES & changes.keys()}
    return replace(engine, **values | {"figures": replace(engine.figures, **own)})
