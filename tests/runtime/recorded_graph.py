"""A CUDA graph's behaviour on a CPU: what was captured runs again on the same tensors.

Every operation of torch is recorded with the tensors it read and made; a replay computes it again
from their contents of now. Python runs only while capturing, so whatever it decided is frozen, as
in a CUDA graph.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_NO_LAUNCH = {
    *("view", "_unsafe_view", "slice", "select", "expand", "transpose", "permute", "t", "flatten"),
    *("unsqueeze", "squeeze", "detach", "split", "as_strided", "unbind", "alias", "chunk"),
    *("_reshape_alias", "lift_fresh", "empty", "empty_like", "new_empty"),
}


class _Recordings(threading.local):
    """What is being captured: in each thread its own, as ranks may be threads."""

    def __init__(self) -> None:
        self.calls: list[list[partial[None]]] = []


_recordings = _Recordings()


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """As `engine.graphs.Capture`."""
    step()
    calls = _recorded(step)

    def replay() -> None:
        for call in calls:
            call()

    return replay


def launches(step: Callable[[], None]) -> Counter[str]:
    """Operations of a step that a GPU would launch, by name: neither views nor allocations."""
    step()
    operations = (call.args[0] if call.func is _again else call.func for call in _recorded(step))
    names = (operation.__qualname__.rpartition("::")[2] for operation in operations)
    return Counter(name for name in names if name.partition(".")[0] not in _NO_LAUNCH)


def _recorded(step: Callable[[], None]) -> list[partial[None]]:
    calls: list[partial[None]] = []
    _recordings.calls.append(calls)
    try:
        with _Recorder(calls):
            step()
    finally:
        _recordings.calls.pop()
    return calls


def kernel(function: Callable[..., None], *args: Any) -> None:
    """Runs `function` as one operation, which reads its tensors whenever it runs."""
    if not _recordings.calls:
        function(*args)
        return
    with _disable_current_modes():
        function(*args)
    _recordings.calls[-1].append(partial(function, *args))


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: list[partial[None]]) -> None:
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
