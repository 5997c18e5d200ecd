"""The tables of policies in the reference are what the policies say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.policies import ALIASES, POLICIES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "scheduling.md"


@pytest.mark.parametrize("table", [POLICIES, EVICTIONS], ids=["admission", "eviction"])
def test_the_reference_says_of_every_policy_what_it_is_good_for(
    table: Mapping[str, Callable[..., Any]],
) -> None:
    page = " ".join(PAGE.read_text().split())
    for name, policy in table.items():
        said = " ".join((policy.__doc__ or "").split())
        assert said.startswith("Good "), name
        assert f"| `{name}` | {said} |" in page, f"| `{name}` | {said} |"


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_the_reference_names_every_alias(alias: str, name: str) -> None:
    assert f"| `{alias}` | Another name of `{name}`." in PAGE.read_text()
