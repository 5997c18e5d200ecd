"""What a person sees while a step runs."""

from __future__ import annotations

import pytest

from e2e.cluster.progress import Step


def test_a_step_says_when_it_begins_and_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Step("Doing it"):
        pass
    with pytest.raises(ValueError, match="broken"), Step("Breaking it"):
        raise ValueError("broken")
    begun, done, _, failed = capsys.readouterr().err.splitlines()
    assert begun == "… Doing it"
    assert done.startswith("✓ Doing it")
    assert failed.startswith("✗ Breaking it")
