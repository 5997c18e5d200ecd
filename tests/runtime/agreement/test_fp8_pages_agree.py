"""Pages of 8 bits: answers are those of transformers with keys and values cast by hand.

Both round the same numbers, which differ in their last digits: now and then one is rounded the
other way. Hence a tolerance above that of other models, and far below what the cast itself changes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from sluice_runtime.wire.messages import Generate
from torch import Tensor

from tests.runtime.agreement.cases import (
    KV_HEADS,
    Case,
    check,
    random_requests,
    repeating_requests,
    run_case,
)
from tests.runtime.agreement.oracle import Oracle, PairOf, assert_agrees, tolerance
from tests.runtime.harness import Run
from tests.runtime.layers.flashinfer_backend import engines_with_graphs

pytestmark = [pytest.mark.xdist_group("transformers"), pytest.mark.process]

ROUNDED_OTHERWISE = 2e-3
"""Of the spread of an answer's logits, from numbers at the border of two."""
CAST = 0.1
"""The same of what 8 bits change."""
PAGES: Final = "fp8_e4m3"
LAYERS = 2
SCALES = torch.tensor([[[0.004, 0.01], [0.02, 0.003]], [[0.002, 0.008], [0.005, 0.0025]]])
"""[keys and values, layer, key head]. Some numbers are beyond 448 times these."""


class CastOracle(Oracle):
    """With keys and values as pages hold them."""

    def __init__(self, folder: Path, scales: Tensor, dtype: torch.dtype = torch.float64) -> None:
        """scales: see SCALES."""
        super().__init__(folder, dtype)
        self._scales = scales.to(dtype)

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], last: int) -> Tensor:
        from transformers import DynamicCache

        scales = self._scales

        class Cast(DynamicCache):
            def update(self, keys: Tensor, values: Tensor, layer_idx: int, *more: Any) -> Any:
                rounded = [
                    by_hand(numbers, scale[layer_idx])
                    for numbers, scale in zip((keys, values), scales, strict=True)
                ]
                return super().update(rounded[0], rounded[1], layer_idx, *more)

        self._model.set_attn_implementation("eager")
        tokens = torch.tensor([list(token_ids)])
        logits: Tensor = self._model(tokens, past_key_values=Cast(), logits_to_keep=last).logits
        return logits[0]


def by_hand(numbers: Tensor, scale: Tensor) -> Tensor:
    """[batch, head, token, dim], [head] → what is read of them."""
    scale = scale[:, None, None]
    stored = (numbers / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return stored.to(scale.dtype) * scale


def with_scales(model: Path, folder: Path, scales: Tensor, names: tuple[str, str]) -> Path:
    """The model with its scales under such names, as a calibrated checkpoint has them; those that
    are the same for all heads as one number."""
    shutil.copytree(model, folder)
    tensors = load_file(model / "model.safetensors")
    for kind, name in zip(scales, names, strict=True):
        for layer, heads in enumerate(kind):
            stored = heads[:1] if bool((heads == heads[0]).all()) else heads.reshape(-1, 1, 1)
            tensors[f"model.layers.{layer}.self_attn.{name}"] = stored.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


ONES = torch.ones(2, LAYERS, KV_HEADS)
BY_LAYER = SCALES[..., :1].expand_as(SCALES)
PROMPTS = random_requests(12, 100, 24)


def test_answers_are_those_of_keys_and_values_cast_by_hand(pair_of: PairOf) -> None:
    folder, plain = pair_of("qwen3")
    run = check(Case(pages=PAGES), folder, CastOracle(folder, ONES), PROMPTS, ROUNDED_OTHERWISE)
    assert_agrees(plain, PROMPTS, run, CAST)
    with pytest.raises(AssertionError, match="logits differ"):
        assert_agrees(plain, PROMPTS, run, ROUNDED_OTHERWISE)


@pytest.mark.parametrize(
    ("scales", "names"),
    [
        (SCALES, ("k_scale", "v_scale")),
        (BY_LAYER, ("k_proj.k_scale", "v_proj.v_scale")),
    ],
    ids=["one a head", "one a layer"],
)
def test_the_scales_are_the_checkpoints(
    pair_of: PairOf, tmp_path: Path, scales: Tensor, names: tuple[str, str]
) -> None:
    model = pair_of("qwen3")[0]
    oracle = CastOracle(model, scales)
    folder = with_scales(model, tmp_path / "scaled", scales, names)
    check(Case(pages=PAGES), folder, oracle, PROMPTS, ROUNDED_OTHERWISE)


CASES = [
    Case("llama", pages=PAGES, backend="torch", chunk_size=16, page_size=1),
    Case("qwen2", pages=PAGES, pool_tokens=256, chunk_size=32, overlap=True),
    Case("qwen3_moe", pages=PAGES, prefix_cache=False, chunk_size=16),
    Case(pages=PAGES, drafts=4),
    Case(pages=PAGES, host_memory="1Mi", pool_tokens=256, chunk_size=32),
    Case(pages=PAGES, split=(16, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_however_the_engine_is_set_up(pair_of: PairOf, case: Case) -> None:
    folder = pair_of(case.kind)[0]
    requests = repeating_requests(12, 100, 24) if case.drafts else PROMPTS
    if case.pool_tokens:
        requests = random_requests(12, 60, 120)
    layers = 6 if case.kind == "qwen3_moe" else LAYERS
    oracle = CastOracle(folder, torch.ones(2, layers, KV_HEADS))
    check(case, folder, oracle, requests, ROUNDED_OTHERWISE)


@pytest.mark.parametrize(
    ("kind", "layers"),
    [("gemma3_text", 6), ("gpt_oss", 4), ("phi3-long-rope", LAYERS), ("olmo2", LAYERS)],
)
def test_windows_sinks_and_other_norms_agree_too(pair_of: PairOf, kind: str, layers: int) -> None:
    assert_agrees_as_rounded(pair_of, Case(kind, chunk_size=16, pages=PAGES), layers)


@pytest.mark.parametrize(("kind", "layers"), [("gemma3_text", 6), ("gpt_oss", 4)])
def test_windows_and_sinks_agree_on_flashinfers_wrappers_and_in_graphs(
    pair_of: PairOf, kind: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = engines_with_graphs(monkeypatch)
    case = Case(kind, chunk_size=16, pages=PAGES, backend="torch")
    run = assert_agrees_as_rounded(pair_of, case, layers)
    assert 0 < run.graph_steps < sum(run.modes.values()), "steps by graphs, and steps without"
    assert len(replays) >= run.graph_steps


def assert_agrees_as_rounded(pair_of: PairOf, case: Case, layers: int) -> Run:
    """Within what rounding changes of transformers itself: some models make much of a number that
    is rounded the other way."""
    folder, plain = pair_of(case.kind)
    ones = torch.ones(2, layers, KV_HEADS)
    oracle = CastOracle(folder, ones)
    run = run_case(case, folder, PROMPTS)
    assert run.cuts
    assert run.modes["MIXED"]
    rounding = difference(oracle, CastOracle(folder, ones, torch.float32), PROMPTS, run)
    share = max(ROUNDED_OTHERWISE, 2 * rounding)
    assert share < difference(oracle, plain, PROMPTS, run) / 2
    assert assert_agrees(oracle, PROMPTS, run, share) > 20
    return run


def difference(oracle: Oracle, other: Oracle, requests: Sequence[Generate], run: Run) -> float:
    """The largest of the logits of the run's answers, as a share of the spread of an answer's."""
    shares = []
    for request in requests:
        answer = run.tokens[request.request_id]
        token_ids = [*request.prompt_ids, *answer[:-1]]
        logits, others = (o.logits(token_ids, len(answer)).double() for o in (oracle, other))
        shares.append(float((logits - others).abs().max()) / tolerance(logits, 1))
    return max(shares)
