"""The compiled kernels, one instruction set at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sluice_kernels import native

MISSING = native.load()


@pytest.fixture
def isas() -> Iterator[Iterator[str]]:
    """Every instruction set that this processor has, each forced while a loop is at it.

    What a kernel is compared with is the same for all of them, and computed once.
    """
    if MISSING is not None:
        pytest.skip(MISSING.message)
    before = native.isa()
    yield _in_turn()
    native.use_isa(before)


def _in_turn() -> Iterator[str]:
    for isa in native.isas():
        native.use_isa(isa)
        yield isa
