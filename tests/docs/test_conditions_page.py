"""The reference explains every type of condition, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from sluice_operator.api import conditions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "operator.md"
OF_POOLS = {"MixedReady", "PrefillReady", "DecodeReady"}
"""Types that are made of a pool's role."""


def test_the_reference_has_a_row_for_every_condition() -> None:
    table = PAGE.read_text().split("\n## Conditions\n\n")[1].split("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    types = {
        value
        for name, value in vars(conditions).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch(r"([A-Z][a-z]+)+", value)
    }
    assert explained == types | OF_POOLS
