"""One whole engine for the tests that leave it running; one of its own for a test that ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.launch.processes import CONTEXT_TOKENS, Process, program, running, write_config

SETTINGS: dict[str, Any] = {
    "contextLength": CONTEXT_TOKENS,
    "kvPoolTokens": 8 * CONTEXT_TOKENS,
    "threads": 1,
    "server": {"drainSeconds": 120},
}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """Process and URL. Whoever uses it is of the group `engine`, so that one worker starts it."""
    config = write_config(tmp_path_factory.mktemp("engine"), **SETTINGS)
    with running(program(config)) as process:
        yield process, process.ready_url()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Process]:
    """It may still be starting."""
    log = tmp_path / "termination-log"
    log.touch()
    config = write_config(tmp_path, **SETTINGS)
    with running(program(config), SLUICE_TERMINATION_LOG=str(log)) as process:
        yield process
