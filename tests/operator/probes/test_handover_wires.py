"""Decode engines are asked what carries their pages until they have measured it."""

from __future__ import annotations

from sluice_contract.wire.load import HandoverWire
from sluice_operator.probes.handover_wires import HandoverReports

from tests.operator.probes.test_accelerators import Engines, engine, load
from tests.operator.virtual_time import FakeClock

WIRE = HandoverWire(backend="NIXL", protocol="rdma")
FAST = HandoverWire(backend="NIXL", protocol="rdma", gigabytes_per_second=11.0)
FASTER = FAST.model_copy(update={"gigabytes_per_second": 12.0})


def says(wire: HandoverWire) -> bytes:
    return load(None, handover=wire.to_json_dict())


async def test_what_was_measured_first_holds_for_the_life_of_the_container() -> None:
    engines = Engines(OSError("refused"), says(WIRE), says(FAST), says(FASTER))
    clock = FakeClock()
    reports, pods = HandoverReports(engines.fetch, clock), [engine("a")]
    for wire, again in ((None, 15.0), (WIRE, 30.0), (FAST, None)):
        assert await reports.fetch(pods) == (wire,)
        assert await reports.fetch(pods) == (wire,), "not before its time"
        assert reports.again_seconds(pods) == again
        clock.elapsed_seconds += again or 1e6
    assert await reports.fetch(pods) == (FAST,)
    assert await reports.fetch([engine("b")]) == (FASTER,)
    assert len(engines.asked) == 4


async def test_an_engine_that_was_heard_once_keeps_its_answer_while_it_is_silent() -> None:
    engines, clock = Engines(says(WIRE), OSError("refused")), FakeClock()
    reports = HandoverReports(engines.fetch, clock)
    for _ in range(2):
        assert await reports.fetch([engine("a")]) == (WIRE,)
        clock.elapsed_seconds += 1000.0


async def test_an_engine_of_an_older_release_is_asked_ever_less_often() -> None:
    engines, clock = Engines(*[load(None)] * 8), FakeClock()
    reports, waits = HandoverReports(engines.fetch, clock), []
    for _ in range(8):
        assert await reports.fetch([engine("a")]) == (None,)
        waits.append(reports.again_seconds([engine("a")]))
        clock.elapsed_seconds += waits[-1] or 0.0
    assert waits == [15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]
