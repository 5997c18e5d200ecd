"""Models for agreement, written and loaded once a session."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.runtime.agreement.oracle import Oracle, Pair, PairOf, write_model

TRAINED = Path(__file__).parents[3] / "e2e" / "model" / "sluice-tiny"


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> PairOf:
    """The model of a kind; `trained` is the one that the samples serve."""

    @cache
    def made(kind: str) -> Pair:
        if kind == "trained":
            return TRAINED, Oracle(TRAINED)
        folder = write_model(tmp_path_factory.mktemp(kind), kind)
        return folder, Oracle(folder)

    return made
