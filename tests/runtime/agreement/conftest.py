"""Models for agreement, written and loaded once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.agreement.oracle import load_oracle, write_model

TRAINED = Path(__file__).parents[3] / "e2e" / "model" / "sluice-tiny"

Pair = tuple[Path, Any]
"""Folder, and the oracle loaded from it."""


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """The model of a kind; `trained` is the one that the samples serve."""

    @cache
    def made(kind: str) -> Pair:
        if kind == "trained":
            return TRAINED, load_oracle(TRAINED)
        folder = write_model(tmp_path_factory.mktemp(kind), kind)
        return folder, load_oracle(folder)

    return made
