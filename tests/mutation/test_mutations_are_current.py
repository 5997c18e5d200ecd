"""Every listed line is still there, once, and the tests that must notice it exist."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutations import MUTATIONS, SCHEDULER, TESTS

ROOT = Path(__file__).parents[2]


def test_every_mutation_can_be_made() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / SCHEDULER / f"{mutation.module}.py").read_text()
        assert text.count(mutation.before) == 1, mutation.what
        assert mutation.before != mutation.after, mutation.what
        for test in mutation.tests:
            assert (ROOT / TESTS / f"{test}.py").is_file(), mutation.what
