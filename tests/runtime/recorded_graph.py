"""A CUDA graph's behaviour on a CPU: what was captured runs again on the same tensors.

Every operation of torch is recorded with the tensors it read and made; a replay computes it again
from their contents of now. Python runs only while capturing, so whatever it decided is frozen, as
in a CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


class _Recordings(threading.local):
    """What is being captured: in each thread its own, as ranks may be threads."""

    def __init__(self) -> None:
        self.calls: list[list[Callable[[], None]]] = []


_recordings = _Recordings()


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """As `engine.graphs.Capture`."""
    step()
    calls: list[Callable[[], None]] = []
    _recordings.calls.append(calls)
    try:
        with _Recorder(calls):
            step()
    finally:
        _recordings.calls.pop()

    def replay() -> None:
        for call in calls:
            call()

    return replay


def kernel(function: Callable[..., None], *args: Any) -> None:
    """Runs `function` as one operation, which reads its tensors whenever it runs."""
    if not _recordings.calls:
        function(*args)
        return
    with _disable_current_modes():
        function(*args)
    _recordings.calls[-1].append(partial(function, *args))


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: list[Callable[[], None]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self._calls.append(partial(_again, func, args, kwargs or {}, made))
        return made


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
    result = func(*args, **kwargs)
    for old, new in zip(_tensors(made), _tensors(result), strict=True):
        # Views and operations in place yield the same memory again.
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _tensors(made: Any) -> list[Tensor]:
    values = made if isinstance(made, tuple | list) else (made,)
    return [value for value in values if isinstance(value, torch.Tensor)]
