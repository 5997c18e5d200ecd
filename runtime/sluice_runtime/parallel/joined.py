"""Rank 0 of an engine and the processes of the others, from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from sluice_contract.base import ConfigError
from sluice_contract.config.sizing import ResolvedConfig

from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.parallel.group import SOLO, Group, joined_group
from sluice_runtime.parallel.processes import OnDeath, Socket, end_process, started_ranks
from sluice_runtime.scheduler.batch import Batch


@dataclass(frozen=True)
class JoinedRanks:
    """Group of an engine's ranks, and what rank 0 needs for reaching the others."""

    group: Group
    announce: Callable[[Batch], None] | None
    """Function that announces each launched step to them, in order; None: there are no others."""
    copiers: Sequence[Socket] = ()
    """Sockets for copying pages, as in `Ranks`."""


@contextmanager
def joined_ranks(
    config: ResolvedConfig, place: torch.device, on_death: OnDeath = end_process
) -> Iterator[JoinedRanks]:
    """Starts the other ranks and joins them: as many as `tensorParallelSize`, including this
    process, which computes in `place`.

    Raises:
        InvalidConfigError: there are fewer GPUs.
    """
    size = config.tensor_parallel_size
    if size == 1:
        yield JoinedRanks(SOLO, None)
        return
    if place.type == "cuda" and (gpus := torch.cuda.device_count()) < size:
        allowed = f"at most {gpus}, the GPUs that this process can use"
        raise InvalidConfigError(str(ConfigError("tensorParallelSize", size, allowed)))
    with (
        started_ranks(config, on_death) as ranks,
        joined_group(0, size, place, ranks.meeting) as group,
    ):
        yield JoinedRanks(group, ranks.announce, ranks.copiers)
        ranks.announce(None)  # before the group is left, which waits for all to leave
