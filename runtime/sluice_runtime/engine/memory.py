"""Turns failed allocations into errors that say what failed and which setting to lower.

At start-up such an error is final, since a restart would fail again. In a step it is not: the
memory of a step depends on the requests in it.

Recognises torch's messages; knows neither batch nor pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from sluice_runtime.errors import OutOfMemoryError, StepOutOfMemoryError

SIGNS: Final = ("can't allocate memory", "not enough memory", "out of memory")


@contextmanager
def allocation(
    phase: str,
    wanted: str,
    lower: str,
    failure: type[OutOfMemoryError | StepOutOfMemoryError] = OutOfMemoryError,
) -> Iterator[None]:
    """Turns a failed allocation inside into a `failure`; other errors pass.

    Args:
        phase: what allocates, e.g. `KV pool`.
        wanted: what is allocated, with numbers.
        lower: the settings to lower.
        failure: the error to raise.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or _is_allocation(error)):
            raise
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise failure(f"{phase} wants {wanted}; lower {lower} ({cause})") from error


def _is_allocation(error: Exception) -> bool:
    return any(sign in str(error).lower() for sign in SIGNS)
