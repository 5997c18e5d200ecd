"""A unit test that needs much CPU time fails, so that all of them stay a matter of seconds.

CPU time, of this process and of the children that it has waited for: what else the machine does has
little part in it. Counted are a test's own call and its own fixtures, not those that it shares, nor
the garbage collector, whose turn it is by chance.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.levels import levels_of

LIMIT_SECONDS: Final = 0.3
TOLERANCE: Final = 3
"""Processors differ, and a virtual one computes half as fast while the other thread of its core is
busy: the same loop took 11 and 22 ms of CPU time within a second of an idle machine."""
TOLERANCE_OF_BUSY: Final = 5
"""Where more processes want to run than this machine has processors for: beside four of them on two
cores a test took up to 2.1 times its CPU time; at a load of 15 one of 0.3 took 1.3 s."""
MOST_IMPORTED: Final = 30
"""Modules. A test that is the first to import more than these is not judged: another one would be,
were it the first."""
Wrapper = Generator[None, Any, Any]


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def tolerance() -> int:
    """How many times the limit a test may take."""
    busy = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    return TOLERANCE_OF_BUSY if busy else TOLERANCE


class CpuLimit:
    """A plugin of pytest. Judges no test under a debugger, and none that draws more than usual."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._imported = 0
        self._collecting_seconds = 0.0
        self._collection_began = 0.0

    def pytest_sessionstart(self) -> None:
        gc.callbacks.append(self._on_collection)

    def pytest_collection_finish(self) -> None:
        st.text().validate()  # Hypothesis makes its table of characters once a checkout: a second

    def pytest_sessionfinish(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting_seconds += time.thread_time() - self._collection_began

    @contextmanager
    def _counted(self) -> Generator[None]:
        modules, began = len(sys.modules), cpu_seconds() - self._collecting_seconds
        try:
            yield
        finally:
            self._seconds += cpu_seconds() - self._collecting_seconds - began
            self._imported += len(sys.modules) - modules

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Wrapper:
        self._seconds, self._imported = 0.0, 0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Wrapper:
        if fixturedef.scope != "function":
            return (yield)
        with self._counted():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Wrapper:
        with self._counted():
            result = yield
        if self._seconds <= LIMIT_SECONDS:
            return result
        item.user_properties.append(("cpu_seconds", round(self._seconds, 2)))
        if (
            self._seconds > LIMIT_SECONDS * tolerance()
            and self._imported <= MOST_IMPORTED
            and not levels_of(item)
            and settings.get_current_profile_name() == "check"
            and sys.gettrace() is None
        ):
            pytest.fail(
                f"test takes {self._seconds:.2f} CPU-seconds; a unit test takes at most"
                f" {LIMIT_SECONDS}: make it cheaper or mark it process",
                pytrace=False,
            )
        return result
