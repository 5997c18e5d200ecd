"""How a process exchanges tensors with its ranks, and when it leaves them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sluice_runtime.parallel.group import TorchGroup, joined_group
from torch import Tensor


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


def test_parts_are_joined_by_one_call_and_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank after rank in each row. Two ranks for real: see `test_ranks`."""
    parts = torch.arange(12).view(2, 3, 2)  # of two ranks, three rows
    calls: list[tuple[int, ...]] = []

    def gather(out: Tensor, part: Tensor) -> None:
        assert torch.equal(part, parts[1])
        assert part.is_contiguous()
        calls.append(tuple(out.shape))
        out.copy_(parts.flatten(0, 1))

    monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
    joined = TorchGroup(1, 2, torch.device("cpu")).join(parts[1])
    assert joined.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert joined.is_contiguous()
    assert calls == [(6, 2)]
