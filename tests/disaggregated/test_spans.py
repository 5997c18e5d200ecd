"""One trace through two pools: router, decode engine, prefill engine, transfer, answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sluice_contract.spans import RouterTracing

from tests.collector import Collector, Seen, collecting
from tests.disaggregated.asking import ask, check, task
from tests.disaggregated.service import running_service
from tests.router import fakes
from tests.runtime.launch.processes import until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("disaggregated")]

NAMES = {
    "sluice.request": ("sluice-router", None),
    "sluice.attempt": ("sluice-router", "sluice.request"),
    "sluice.engine": ("sluice-api", "sluice.attempt"),
    "sluice.prefill": ("sluice-engine", "sluice.engine"),
    "sluice.transfer": ("sluice-engine", "sluice.engine"),
    "sluice.decode": ("sluice-api", "sluice.engine"),
}
"""Spans of one request: the process that tells of each, and what it is a part of."""
COPY = task("copy", 200, 3)


async def test_every_step_of_a_request_is_a_span_of_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as collector:
        tracing = {"endpoint": collector.url}
        with running_service(tmp_path, tracing=tracing) as service:
            async with fakes.running_router(
                *(engine.url for engine in service.decodes),
                prefill_engines=tuple(engine.url for engine in service.prefills),
                handover_key_file=str(tmp_path / "router-key"),
                tracing=RouterTracing(endpoint=collector.url),
                upstream={"wait_for_engine_seconds": 30},
            ) as router:
                check(COPY, await asyncio.to_thread(ask, router.url, COPY))
            until(lambda: {span.name for span in collector.spans} >= NAMES.keys())
    spans = {name: only(collector, name) for name in NAMES}
    assert len({span.trace_id for span in spans.values()}) == 1
    for name, (process, parent) in NAMES.items():
        assert spans[name].process == process
        assert spans[name].parent_id == (spans[parent].span_id if parent else "")
    moments = [
        spans["sluice.engine"].seconds[0],
        spans["sluice.prefill"].seconds[1],
        spans["sluice.transfer"].seconds[1],
        spans["sluice.decode"].seconds[0],
        spans["sluice.decode"].seconds[1],
    ]
    assert moments == sorted(moments)
    assert spans["sluice.prefill"].attributes["sluice.prompt_tokens"] == len(COPY.body["prompt"])


def only(collector: Collector, name: str) -> Seen:
    (span,) = collector.named(name)
    return span
