"""Rank 0 of an engine and the processes of the others, from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sluice_contract.config import EngineConfig

from sluice_runtime.engine.device import place_of
from sluice_runtime.parallel.group import SOLO, Group, joined_group
from sluice_runtime.parallel.processes import OnDeath, end_process, started_ranks
from sluice_runtime.scheduler.batch import Batch


@dataclass(frozen=True)
class JoinedRanks:
    """What rank 0 needs of the others."""

    group: Group
    announce: Callable[[Batch], None] | None
    """Tells them of each step that is launched, in order; None: there are no others."""


@contextmanager
def joined_ranks(config: EngineConfig, on_death: OnDeath = end_process) -> Iterator[JoinedRanks]:
    """As many as `tensorParallelSize` of a resolved configuration, this process included."""
    size = config.tensor_parallel_size or 1
    if size == 1:
        yield JoinedRanks(SOLO, None)
        return
    place = place_of(config.accelerator)
    with (
        started_ranks(config, on_death) as ranks,
        joined_group(0, size, place, ranks.meeting) as group,
    ):
        yield JoinedRanks(group, ranks.announce)
        ranks.announce(None)  # before the group is left, which waits for all to leave
