"""A circle of imports is found and named in the order of its imports."""

from __future__ import annotations

from itertools import pairwise

from tests.import_circles import circle


def test_a_circle_is_named_from_importer_to_imported() -> None:
    imports = {"a": ["b", "x"], "b": ["c"], "c": ["a"], "x": []}
    found = circle(imports)
    assert found[0] == found[-1]
    assert all(after in imports[before] for before, after in pairwise(found))
    assert set(found) == {"a", "b", "c"}


def test_modules_that_only_share_an_import_are_no_circle() -> None:
    assert circle({"a": ["c"], "b": ["c", "a"], "c": []}) == []
