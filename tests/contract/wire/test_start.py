"""What is written about an engine's start."""

from __future__ import annotations

from typing import get_args

import pytest
from sluice_contract.cluster.metrics import ENGINE
from sluice_contract.wire.start import ENGINE_PHASES, Phase, start_text


@pytest.mark.parametrize(
    ("seconds", "phases", "text"),
    [
        (9.4, {"imports": 3.0, "weights": 6.1}, "9.4 s: weights 6.1 s, imports 3.0 s, rest 0.3 s"),
        (9.4, {"weights": 9.35, "ranks": 0.05}, "9.4 s: weights 9.3 s"),
        (12.4, {"image": 40.0}, "12.4 s"),
        (12.4, {"image": 12.0, "weights": 0.5}, "12.4 s"),
        (12.4, {"image": 12.0, "weights": 0.42}, "12.4 s: image 12.0 s, weights 0.4 s"),
        (12.4, {}, "12.4 s"),
        (0.0, {"imports": 0.0}, "0.0 s: imports 0.0 s, rest 0.0 s"),
    ],
)  # fmt: skip
def test_a_start_is_written_with_its_longest_phases_first(
    seconds: float, phases: dict[str, float], text: str
) -> None:
    assert start_text(seconds, phases) == text


def test_the_metric_names_every_phase() -> None:
    (metric,) = (metric for metric in ENGINE if metric.name == "sluice_engine_start_seconds")
    assert metric.help.endswith(f": {', '.join(ENGINE_PHASES)}.")
    assert tuple(ENGINE_PHASES) == get_args(Phase)
