"""What an engine reports of its work: rates, from the steps that it made."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from sluice_runtime.engine.report import (
    Pace,
    StartupSizes,
    StepLog,
    layers_text,
    marginal_rate,
    startup_line,
)
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode, LayerGroup, VerifyRow

from tests.runtime.scheduler.building import Bench, request, settings_of


def step(prompt_tokens: int = 0, decode_rows: int = 0) -> Batch:
    extends = (ExtendRow(99, 0, tuple(range(prompt_tokens)), samples=True),)
    rows = tuple(range(decode_rows))
    return Batch(
        1, ForwardMode.MIXED, extend_rows=extends if prompt_tokens else (), decode_rows=rows
    )


def test_a_chunk_in_groups_of_layers_counts_for_the_rate_once() -> None:
    pace = Pace()
    for first in range(4):
        group = replace(step(100, decode_rows=2), layers=LayerGroup(first, first + 1, 4))
        pace.stepped(group, float(first), first + 0.5)
    assert pace.prefill_tokens_per_second == pytest.approx(100 / 2.0)


def test_a_line_tells_the_layers_of_a_group() -> None:
    group = replace(step(100, decode_rows=2), layers=LayerGroup(2, 4, 8))
    assert layers_text(group) == ", layers: 3-4 of 8"
    assert layers_text(step(100)) == ""


NAMES = [(True, "available_gpu_mem"), (False, "available_mem")]


@pytest.mark.parametrize(("on_gpu", "name"), NAMES)
def test_the_memory_of_a_gpu_is_called_so_on_a_gpu_alone(on_gpu: bool, name: str) -> None:
    line = startup_line(StartupSizes(1, 2, 3, 4, 5, 3 << 29, on_gpu))
    assert line.endswith(f", {name}=1.50 GB")


def test_nothing_is_known_before_the_first_step() -> None:
    pace = Pace()
    assert pace.prefill_tokens_per_second is None
    assert pace.itl_seconds(5.0) is None
    assert pace.generated_tokens == 0


def test_prompts_are_computed_at_the_rate_of_whole_chunks() -> None:
    """Even if the prompts' ends are as many steps, and take nearly as long."""
    pace = Pace()
    for at in range(20):
        pace.stepped(step(prompt_tokens=2000), at, at + 0.5)
        pace.stepped(step(prompt_tokens=3), at + 0.5, at + 0.9)
    assert pace.prefill_tokens_per_second == pytest.approx(4000, rel=0.01)
    for at in range(20, 400):
        pace.stepped(step(prompt_tokens=2000), at, at + 1.0)
    assert pace.prefill_tokens_per_second == pytest.approx(2000, rel=0.01)


def test_the_marginal_rate_is_the_inverse_of_what_a_token_adds_within_reason() -> None:
    pace = Pace()
    assert marginal_rate(pace, 0.001) is None
    pace.stepped(step(prompt_tokens=2000), 0.0, 2.0)
    assert marginal_rate(pace, None) is None
    assert marginal_rate(pace, 0.0005) == 2000
    assert marginal_rate(pace, 1e-320) == 10 * 1000, "prompts that add nothing"


def test_answers_wait_for_steps_that_they_sit_out() -> None:
    pace = Pace()
    pace.stepped(step(decode_rows=4), 0.0, 0.1)
    pace.stepped(step(prompt_tokens=8), 0.1, 0.4)
    pace.stepped(step(decode_rows=4), 0.4, 0.5)
    assert pace.itl_seconds(0.5) == pytest.approx((0.1 + 0.4) / 2)
    assert pace.generated_tokens == 9


def test_drafts_count_when_answers_keep_them() -> None:
    pace = Pace()
    verify = VerifyRow(1, 5, (1, 2, 3, 4))
    batch = Batch(1, ForwardMode.TARGET_VERIFY, verify_rows=(verify,), decode_rows=(0,))
    pace.stepped(batch, 0.0, 0.4, accepted_tokens=2)
    assert pace.generated_tokens == 4
    assert pace.itl_seconds(0.4) == pytest.approx(0.4), "kept drafts shorten no step"


def test_a_line_tells_how_many_drafts_were_kept(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(settings_of(draft_tokens=4))
    bench.add(request("a", 5, 200))
    log = StepLog(4, Pace())
    with caplog.at_level("INFO"):
        while batch := bench.step():
            log.step(batch, bench.scheduler.status(), float(batch.step))
    (line,) = [line for line in caplog.messages if line.startswith("Decode batch. #running-req: 1")]
    drafted, accepted = re.findall(r"#draft-token: (\d+), #accepted-token: (\d+)$", line)[0]
    assert 40 < int(accepted) < int(drafted)


def test_the_time_between_tokens_is_that_of_the_last_ten_seconds_without_idleness() -> None:
    pace = Pace()
    for at in range(5):
        pace.stepped(step(decode_rows=1), float(at), at + 1.0)
    pace.forget_decode()
    for at in range(20, 26):
        pace.stepped(step(decode_rows=3), at, at + 0.5)
        pace.stepped(step(decode_rows=3), at + 0.5, at + 1.0)
    assert pace.itl_seconds(26.0) == pytest.approx(0.5)
    assert pace.itl_seconds(40.0) is None
