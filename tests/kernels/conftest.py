"""The compiled kernels, one instruction set at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sluice_kernels import native

MISSING = native.load()
ISAS = ["none"] if MISSING else native.isas()


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this processor has, forced in turn."""
    if MISSING is not None:
        pytest.skip(MISSING.message)
    before = native.isa()
    native.use_isa(request.param)
    yield request.param
    native.use_isa(before)
