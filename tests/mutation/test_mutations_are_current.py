"""Every listed line is still there, once, and the tests that must notice it exist."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.every import EVERY

ROOT = Path(__file__).parents[2]


def test_every_mutation_can_be_made() -> None:
    for mutation in EVERY:
        text = (ROOT / mutation.source).read_text()
        assert text.count(mutation.before) == 1, mutation.what
        assert mutation.before != mutation.after, mutation.what
        for test in mutation.test_files:
            assert (ROOT / test).is_file(), mutation.what
