"""Says what failed when the device has no memory left, and which setting to lower.

At start-up that is final: what does not fit now will not fit then. In a step it is not: what it
wants depends on what the clients asked for.

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
        phase: what is being done, e.g. `KV pool`.
        wanted: what it asks for, with numbers.
        lower: settings whose lowering helps.
        failure: what is raised.
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
