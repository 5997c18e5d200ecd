"""A download that breaks off or is killed goes on where it was."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.fetch.conftest import SHARDS
from tests.fetch.hub_server import COMMIT, Hub
from tests.fetch.test_fetch import EVERYTHING_BYTES, Run, needed_of, snapshot_of
from tests.patience import PATIENCE_SECONDS

OVERHEAD_BYTES = 20_000
"""Small files and lists, a few times."""


def blobs(root: Path) -> Path:
    return root / "models--org--name" / "blobs"


def test_connections_that_break_off_cost_no_byte_twice(hub: Hub, tmp_path: Path) -> None:
    drawn = random.Random(3)
    hub.ends_after = [drawn.randrange(1, 300_000) for _ in range(12)]
    run = Run(hub, tmp_path)
    assert (run.code, snapshot_of(tmp_path)) == (0, needed_of(hub))
    assert run.slept == [1.0] * 12, "each brought something, so no wait grows"
    assert hub.sent_bytes < EVERYTHING_BYTES + OVERHEAD_BYTES


def test_a_connection_that_brings_nothing_is_tried_ever_more_seldom(
    hub: Hub, tmp_path: Path
) -> None:
    hub.ends_after = [0] * 6
    assert Run(hub, tmp_path).slept == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_server_without_ranges_sends_all_again(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges, hub.ends_after = False, [100_000]
    assert Run(hub, tmp_path).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub)


@pytest.mark.parametrize(
    "left", [b"torn", b"x" * 4_000_000, b"y" * 3_000_000], ids=["start", "too long", "whole"]
)
def test_what_was_left_and_is_wrong_is_fetched_anew(left: bytes, hub: Hub, tmp_path: Path) -> None:
    blobs(tmp_path).mkdir(parents=True)
    sha256 = hub.info(hub.repository, "main")["siblings"][0]["lfs"]["sha256"]
    (blobs(tmp_path) / f"{sha256}.incomplete").write_bytes(left)
    assert Run(hub, tmp_path).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub)


def test_a_file_damaged_on_the_way_is_fetched_once_more(hub: Hub, tmp_path: Path) -> None:
    hub.damage = 1
    assert Run(hub, tmp_path).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub)


def test_a_snapshot_that_lost_a_blob_is_not_complete(hub: Hub, tmp_path: Path) -> None:
    Run(hub, tmp_path)
    (tmp_path / "models--org--name" / "snapshots" / COMMIT / SHARDS[1]).resolve().unlink()
    assert Run(hub, tmp_path, "--revision", COMMIT).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub)


@pytest.mark.process
def test_a_process_killed_at_ten_random_points_goes_on_each_time(hub: Hub, tmp_path: Path) -> None:
    drawn = random.Random(11)
    hub.files[SHARDS[0]] = drawn.randbytes(40_000_000)
    command = [sys.executable, "-m", "sluice_fetch", "--uri", "hf://org/name"]
    command += ["--endpoint", hub.url, "--cache", str(tmp_path), "--parallel", "1"]
    for _ in range(10):
        hub.stalled, hub.go_on = threading.Event(), threading.Event()
        hub.stalls_at = hub.sent_bytes + drawn.randrange(1, 4_000_000)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                assert hub.stalled.wait(PATIENCE_SECONDS)
                process.send_signal(drawn.choice([signal.SIGKILL, signal.SIGTERM]))
                process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
                hub.go_on.set()
    hub.stalls_at = None
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert snapshot_of(tmp_path) == needed_of(hub)
    offsets = [
        int(sent["range"].removeprefix("bytes=").removesuffix("-")) if "range" in sent else 0
        for path, sent in hub.requests
        if path == f"/lfs/org/name/{SHARDS[0]}"
    ]
    assert offsets == sorted(offsets)
    assert offsets[-1] > 5_000_000, "of 20 MB on average that were sent before the last kill"
