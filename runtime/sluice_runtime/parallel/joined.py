"""Starts an engine's other ranks from rank 0, joins them in a group, and ends them."""

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
    """Group of an engine's ranks, with what rank 0 needs to reach the others."""

    group: Group
    announce: Callable[[Batch], None] | None
    """Function that announces each launched step to the other ranks, in order; None: there is one
    rank."""
    copiers: Sequence[Socket] = ()
    """Sockets for copying pages, as in `Ranks`."""


@contextmanager
def joined_ranks(
    config: ResolvedConfig, place: torch.device, on_death: OnDeath = end_process
) -> Iterator[JoinedRanks]:
    """Starts the other ranks and joins them: as many as `tensorParallelSize`, including this
    process, which computes in `place`.

    Raises:
        InvalidConfigError: there are fewer GPUs than ranks.
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
        ranks.announce(None)  # leaving the group waits for all ranks, so they must be told first
