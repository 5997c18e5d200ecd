"""The steps before the engine is ready: they try the memory of the largest, in a bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sluice_runtime.engine.sampling.memory import WORK_AT_ONCE_BYTES, WORK_BYTES
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.scheduler.batch import Batch, SampledTokens

from tests.runtime.engine.test_step_memory import cpu
from tests.runtime.grammar.driving import engine_of
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import VOCABULARY, FakeRunner


class LayersRunner(FakeRunner):
    """Notes which steps computed the first layer only."""

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__(pages, page_size)
        self.steps_of_first_layer: list[bool] = []
        self._first_layer_only = False

    @contextmanager
    def first_layer_only(self) -> Iterator[None]:
        self._first_layer_only = True
        yield
        self._first_layer_only = False

    def forward(self, batch: Batch) -> SampledTokens:
        self.steps_of_first_layer.append(self._first_layer_only)
        return super().forward(batch)


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [
        ({"chunk_size": 64}, [49, *[1] * 15]),
        ({"chunk_size": 64, "page_size": 1}, [49, *[1] * 15]),
        ({"chunk_size": 8}, [4, *[1] * 15]),
        ({"chunk_size": None, "max_prefill_tokens": 100}, [85, *[1] * 15]),
        ({"chunk_size": 64, "context": 32}, [31, *[1] * 15]),
        ({"chunk_size": 64, "pool_tokens": 32}, [3, *[1] * 7]),
        ({"chunk_size": 64, "pool_tokens": 64}, [3, *[1] * 15]),
    ],
)
def test_a_full_chunk_with_all_rows_and_then_all_is_free_again(
    settings: dict[str, Any], lengths: list[int]
) -> None:
    made = settings_of(**settings)
    runner = LayersRunner(made.limits.kv_pool_tokens // made.page_size, made.page_size)
    warm_up(runner, made, VOCABULARY)
    assert [batch.mode for batch in runner.batches] == ["EXTEND", "DECODE", "IDLE"]
    extend, decode, _ = runner.batches
    assert [len(row.token_ids) for row in extend.extend_rows] == lengths
    assert len(decode.decode_rows) == 1
    assert all(added.sampling.penalises for added in extend.added_rows)
    assert not runner.rows


def test_only_the_first_layer_computes_the_full_chunk() -> None:
    """All layers would take as long as the largest step that requests can cause."""
    runner = LayersRunner(64, 16)
    warm_up(runner, settings_of(), VOCABULARY)
    assert runner.steps_of_first_layer == [True, False, False]


def test_no_more_rows_are_penalised_than_are_sampled_at_once() -> None:
    runner = LayersRunner(64, 16)
    vocabulary = WORK_AT_ONCE_BYTES // WORK_BYTES // 5
    warm_up(runner, settings_of(), vocabulary)
    sampling = [added.sampling for added in runner.batches[0].added_rows]
    assert [each.penalises and each.top_p < 1 for each in sampling] == [True] * 5 + [False] * 11


@pytest.mark.parametrize("settings", [{"context": 1}, {"pool_tokens": 1, "page_size": 1}])
def test_a_context_without_room_for_two_tokens_is_not_warmed_up(settings: dict[str, Any]) -> None:
    runner = LayersRunner(1, 1)
    warm_up(runner, settings_of(**settings), VOCABULARY)
    assert not runner.batches


def test_missing_memory_ends_the_start_and_names_the_settings_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_of(chunk_size=64) as engine:
        monkeypatch.setattr(Decoder, "hidden", lambda *_: cpu())
        with pytest.raises(OutOfMemoryError, match=r"warm-up: EXTEND .* 64 tokens .* 32 rows"):
            warm_up(engine.runner, engine.settings, engine.model.spec.vocabulary_size)


def test_a_real_engine_answers_the_same_after_its_warm_up() -> None:
    from tests.runtime.engine.test_step_memory import LATE, assert_nothing_is_held
    from tests.runtime.grammar.driving import run

    with engine_of(chunk_size=64) as engine:
        cold = run(engine, [LATE]).tokens
    with engine_of(chunk_size=64) as engine:
        warm_up(engine.runner, engine.settings, engine.model.spec.vocabulary_size)
        assert run(engine, [LATE]).tokens == cold
        assert_nothing_is_held(engine)
