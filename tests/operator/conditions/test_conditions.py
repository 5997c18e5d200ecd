"""One finding is one text, and another condition is named only where it has that text."""

from __future__ import annotations

import pytest
from sluice_operator.api.conditions import Check
from sluice_operator.conditions.conditions import conditions, find

from tests.operator.examples import NOW

SHORT = "0 of 1 engines ready; none fits"


@pytest.mark.parametrize(
    ("message", "updated", "shown"),
    [
        (f"Pool prefill: {SHORT}.", f"Pool prefill: {SHORT}.", "See Updated."),
        (f"{SHORT}.", f"Pool mixed: {SHORT}", "See Updated."),
        (f"Pool prefill: {SHORT}.", f"Pool decode: {SHORT}.", f"Pool prefill: {SHORT}."),
        ("none fits", f"Pool decode: {SHORT}.", "none fits"),
        ("", "Everything is ready.", ""),
    ],
    ids=["the same", "its pool is named", "another pool", "a part of it", "no message"],
)
def test_a_condition_names_updated_only_where_that_has_its_text(
    message: str, updated: str, shown: str
) -> None:
    checks = {"PrefillReady": Check("False", "A", message), "Updated": Check("False", "A", updated)}
    status = {"conditions": conditions((), checks, 1, NOW)}
    assert status["conditions"][0]["message"] == shown
    text = (find(status, "PrefillReady") or {})["message"]
    assert text.removesuffix(".") in (message.removesuffix("."), updated.removesuffix("."))
