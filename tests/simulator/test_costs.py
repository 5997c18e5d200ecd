"""Cost models: the formula, the presets' stated figures, and files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sluice_runtime.scheduler.batch import StepShape, in_layers
from sluice_simulator.costs import Coefficients, Cost, cost_named, preset_names
from sluice_simulator.errors import CostError, UnusableFileError

GOOD: dict[str, Any] = {
    "name": "mine",
    "source": "measured",
    "contextLength": 4096,
    "kvPoolTokens": 65_536,
    "coefficients": {"step": 1, "token": 2, "product": 3, "row": 5, "context": 7},
}


def test_the_formula() -> None:
    cost = Cost.model_validate(GOOD)
    shape = StepShape(
        extend_tokens=10, extend_context_products=100, decode_rows=4, decode_context_tokens=1000
    )
    assert cost.seconds(shape) == 1 + 2 * 10 + 3 * 100 + 5 * 4 + 7 * 1000


def test_few_tokens_take_as_long_as_reading_the_weights() -> None:
    coefficients = Coefficients(step=0, weights=10, token=1, row=1, product=0, context=0)
    cost = Cost(name="a", source="b", context_length=1, kv_pool_tokens=1, coefficients=coefficients)
    assert cost.seconds(StepShape(0, 0, 3, 0)) == 10
    assert cost.seconds(StepShape(12, 0, 3, 0)) == 15


def test_a_group_of_layers_reads_its_share_of_the_weights_again() -> None:
    coefficients = Coefficients(step=4, weights=40, token=1, row=2, product=0, context=0)
    cost = Cost(name="a", source="b", context_length=1, kv_pool_tokens=1, coefficients=coefficients)
    few, many = StepShape(8, 0, 3, 0), StepShape(80, 0, 30, 0)
    assert cost.seconds(in_layers(few, 1 / 4)) == 4 + 40 + (4 + 40) / 4
    assert cost.seconds(in_layers(many, 1 / 4)) == 4 + 60 + (4 + 80) / 4
    alone = StepShape(8, 0, 0, 0)
    assert cost.seconds(in_layers(alone, 1 / 4)) == (4 + 40) / 4
    assert cost.seconds(in_layers(alone, 1)) == cost.seconds(alone)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_where_it_comes_from(name: str) -> None:
    cost = cost_named(name)
    assert cost.name == name
    assert len(cost.source) > 40


def test_the_h200_takes_5_seconds_for_a_prompt_of_100_thousand_tokens() -> None:
    cost, n, chunk = cost_named("h200-llama3-8b"), 100_000, 2_048
    assert cost.seconds(StepShape(n, n * n // 2, 0, 0)) == pytest.approx(5.1, rel=0.02)
    last = cost.seconds(StepShape(chunk, chunk * (n - chunk // 2), 0, 0))
    assert last == pytest.approx(0.170, rel=0.02)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"coefficients": {"step": 1}}, "coefficients.token: required"),
        (
            {"coefficients": {**GOOD["coefficients"], "row": -1}},
            "coefficients.row: -1 is not allowed; allowed: a number, at least 0",
        ),
        ({"speed": 3}, "speed: unknown field; allowed: accelerator, coefficients"),
        ({"source": ""}, 'source: "" is not allowed; allowed: at least 1 character'),
    ],
)
def test_a_bad_file_is_refused_by_key(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(CostError) as caught:
        cost_named(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(GOOD))
    assert cost_named(str(path)).name == "mine"


def test_neither_preset_nor_file() -> None:
    with pytest.raises(UnusableFileError, match=r"a preset .*h200-llama3-8b.* or a readable file"):
        cost_named("no-such-thing")
