"""When a process leaves the group of its ranks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sluice_runtime.parallel.group import joined_group


class FailedError(Exception):
    """What goes wrong in a rank."""


@pytest.mark.parametrize(
    ("place", "fails", "leaves"),
    [("cuda:1", False, 1), ("cuda:1", True, 0), ("cpu", False, 1), ("cpu", True, 1)],
)
def test_after_an_error_a_rank_does_not_wait_for_those_that_wait_for_it(
    place: str, fails: bool, leaves: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left: list[None] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: left.append(None))
    with (
        suppress(FailedError),
        joined_group(1, 2, torch.device(place), tmp_path / "meeting") as group,
    ):
        assert (group.rank, group.size) == (1, 2)
        if fails:
            raise FailedError
    assert len(left) == leaves
