"""The table of policies in the reference is what the policies say of themselves."""

from __future__ import annotations

from pathlib import Path

from sluice_runtime.scheduler.policies import POLICIES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "scheduling.md"


def test_the_reference_says_of_every_policy_what_it_is_good_for() -> None:
    page = " ".join(PAGE.read_text().split())
    for name, policy in POLICIES.items():
        said = " ".join((policy.__doc__ or "").split())
        assert said.startswith("Good "), name
        assert f"| `{name}` | {said} |" in page, f"| `{name}` | {said} |"
