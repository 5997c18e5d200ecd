"""Progress: what it counts, when it speaks, and over which time its speed is."""

from __future__ import annotations

from sluice_fetch.progress import Meter, Progress


class Spoken:
    """A meter of 10,000 bytes on a clock that is set, and what it reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reported: list[Progress] = []
        self.meter = Meter(10_000, lambda: self.now, self.reported.append)

    def receive(self, at: float, count: int) -> None:
        self.now = at
        self.meter.received(count)


def test_it_speaks_at_most_every_two_seconds() -> None:
    spoken = Spoken()
    for tenth in range(1, 51):
        spoken.receive(tenth / 10, 10)
    assert [progress.bytes for progress in spoken.reported] == [200, 400]


def test_what_was_there_counts_as_done_and_not_as_speed() -> None:
    spoken = Spoken()
    spoken.meter.already_there(8_000)
    spoken.receive(2.0, 1_000)
    assert spoken.reported == [Progress(9_000, 10_000, 500.0, 2.0)]


def test_speed_forgets_what_was_more_than_half_a_minute_ago() -> None:
    spoken = Spoken()
    spoken.receive(2.0, 5_000)
    for second in range(10, 71, 10):
        spoken.receive(second, 100)
    assert spoken.reported[-1].bytes_per_second == 10.0
    assert spoken.reported[-1].eta_seconds == 430.0


def test_nothing_received_has_no_time_left() -> None:
    spoken = Spoken()
    spoken.now = 5.0
    assert spoken.meter.progress().fields() == {
        "bytes": 0, "total": 10_000, "bytesPerSecond": 0, "etaSeconds": None
    }  # fmt: skip
