"""The draft model has what it needs of every token, and fits the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.engine.sizing.pool_size import model_bytes
from sluice_runtime.errors import InvalidConfigError, ModelLoadError
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import resolve

from e2e.model.folder import FOLDER
from tests.runtime.engine.test_resumed_rows import finished, prefilled_and_answered
from tests.runtime.harness import engine_config, generate, resolved_config

MODEL = "dummy://qwen3-tiny"


def engine_of(draft: str | None, **settings: Any) -> Engine:
    speculation = {"method": "Draft", "draft": {"uri": draft}}
    asked = {"speculation": speculation} if draft else {}
    config = resolved(engine_config(MODEL, **{"prefix_cache": False, **asked, **settings}))
    return build_engine(config, resolve(config.model.uri))


@pytest.mark.parametrize("prompt_tokens", [5, 600])
def test_it_computes_the_prompt_that_another_engine_has_computed(prompt_tokens: int) -> None:
    prompt = [(7 * place) % 250 for place in range(prompt_tokens)]
    asked = generate("a", prompt, 40)
    expected, pages = prefilled_and_answered(engine_of(None, chunk_size=1024), asked)

    engine = engine_of(MODEL)  # drafts for itself, so it is right while it knows the prompt
    engine.scheduler.add_remote(asked)
    (room,) = engine.scheduler.next_preallocations(0.0)
    assert engine.pool.draft is not None
    engine.pool.data[list(room.page_ids)] = pages
    engine.pool.draft.data[list(room.page_ids)] = float("nan")
    engine.scheduler.resume("a", (expected[0], None, None), 0, 0.0)
    assert finished(engine, expected[:1])[0] == expected
    status = engine.scheduler.status()
    assert status.drafted_tokens > 20
    assert status.drafted_tokens - status.accepted_tokens <= 4


def test_an_engine_that_takes_another_role_drafts_behind_what_it_had_computed() -> None:
    """First a prompt alone, as a prefill engine; then the same one comes to it as to a decode
    engine, and is cached in part."""
    prompt = [(7 * place) % 250 for place in range(200)]
    asked = generate("a", prompt, 40)
    expected, pages = prefilled_and_answered(engine_of(None, chunk_size=1024), asked)
    engine = engine_of(MODEL, chunk_size=1024, prefix_cache=True)
    engine.scheduler.add(generate("prefill", prompt, 1))
    finished(engine, [])
    engine.scheduler.add_remote(asked)
    (room,) = engine.scheduler.next_preallocations(0.0)
    assert room.cached_tokens > 100
    engine.pool.data[list(room.page_ids)] = pages
    engine.scheduler.resume("a", (expected[0], None, None), room.cached_tokens, 0.0)
    assert finished(engine, expected[:1])[0] == expected
    status = engine.scheduler.status()
    assert status.drafted_tokens > 20
    assert status.drafted_tokens - status.accepted_tokens <= 4


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidConfigError) as refused:
        engine_of(str(FOLDER))
    allowed = "a model with the model's vocabulary of 259 tokens (it has 258)"
    text = f'speculation.draft.uri: "{FOLDER}" is not allowed; allowed: {allowed}'
    assert str(refused.value) == text


def test_a_vocabulary_with_other_tokens_is_refused(tmp_path: Path) -> None:
    other = shutil.copytree(FOLDER, tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    swapped = text.replace('"A":', '"swap":').replace('"B":', '"A":').replace('"swap":', '"B":')
    (other / "tokenizer.json").write_text(swapped)
    with pytest.raises(InvalidConfigError, match=r"allowed: a model with the model's tokens \(65 "):
        engine_of(str(other), model={"uri": str(FOLDER)})
    engine_of(str(FOLDER), model={"uri": str(FOLDER)})


def test_a_missing_draft_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^speculation.draft.uri: .*/none' is no folder"):
        engine_of(str(tmp_path / "none"))


def test_its_weights_and_pages_are_part_of_the_plan() -> None:
    own, both = (
        model_bytes(resolved_config(MODEL, **settings), spec_from(resolve(MODEL).config), 1)
        for settings in (
            {},
            {"speculation": {"method": "Draft", "draft": {"uri": MODEL}}},
        )
    )
    assert (both.weights, both.token) == (2 * own.weights, 2 * own.token)
    assert both.over(2).token == 2 * own.over(2).token


def test_a_page_is_cleared_in_both_pools() -> None:
    shape = KvShape(1, 1, 4, torch.float32)
    pool = PagePool(shape, 3, 2, draft=shape)
    assert pool.draft is not None
    assert pool.draft.padding_page == pool.padding_page
    pool.poison([1])
    for data in (pool.data, pool.draft.data):
        assert data[1].isnan().all()
        assert not data[[0, 2]].isnan().any()
