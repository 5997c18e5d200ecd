"""Logprobs are those of the unchanged logits, and only for rows that ask."""

from __future__ import annotations

import pytest
import torch
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.logprobs import (
    MIN_LOGPROB,
    Logprobs,
    StepScores,
    read_scores,
    score,
)
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode, RowAdded
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.wire.messages import Sampling, TokenLogprob

VOCABULARY = 30


def logits_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(4)) * 2


def read(scores: StepScores) -> dict[int, TokenLogprob]:
    return scores.read(scores.tables())


def test_a_token_has_its_logprob_its_rank_and_the_most_probable_tokens() -> None:
    logprobs = torch.log_softmax(logits_of(2), -1)
    order = logprobs[1].argsort(descending=True).tolist()
    _, one = read_scores(score(logprobs, torch.tensor([0, order[6]])), [0, 3])
    assert (one.token_id, one.rank) == (order[6], 7)
    assert one.logprob == pytest.approx(float(logprobs[1, order[6]]))
    assert [token for token, _ in one.top] == order[:3]
    assert [value for _, value in one.top] == pytest.approx(logprobs[1][order[:3]].tolist())


def test_minus_infinity_becomes_a_finite_number() -> None:
    logprobs = torch.tensor([[0.0, float("-inf")]])
    (one,) = read_scores(score(logprobs, torch.tensor([1])), [2])
    assert one.logprob == MIN_LOGPROB
    assert one.top == [(0, 0.0), (1, MIN_LOGPROB)]


def test_logprobs_are_taken_before_logits_are_changed() -> None:
    table = Logprobs(HostDevice())
    table.add(RowAdded(5, "r", Sampling(), logprobs=2))
    logits = logits_of(3)
    wanted = torch.log_softmax(logits[1], -1)
    seen = table.capture(logits, (4, 5, 6))
    logits.fill_(0)
    assert seen is not None
    scores = read(StepScores([], seen, torch.tensor([1, 2, 3])))
    assert list(scores) == [1]
    assert scores[1].logprob == pytest.approx(float(wanted[2]))
    table.drop(5)
    assert table.capture(logits, (4, 5, 6)) is None


@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 200])
def test_a_prompt_is_scored_whole_in_chunks_of_any_size(chunk: int) -> None:
    prompt = torch.randint(VOCABULARY, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    hidden = logits_of(150)  # a model whose head passes everything on
    table = Logprobs(HostDevice())
    table.add(RowAdded(2, "r", Sampling(), 150, key_of(prompt), prompt_logprobs=1))
    for start in range(0, 150, chunk):
        tokens = tuple(prompt[start : start + chunk])
        extend = ExtendRow(2, start, tokens, samples=start + chunk >= 150)
        beside = ExtendRow(3, 0, (1, 2), samples=False)
        batch = Batch(step=1, mode=ForwardMode.EXTEND, extend_rows=(beside, extend))
        step_hidden = torch.cat((torch.zeros(2, VOCABULARY), hidden[start : start + chunk]))
        pieces = table.read(batch, step_hidden, lambda part: part)
        done = table.finished(batch)
        read(StepScores(pieces, None, torch.tensor([])))
    assert list(done) == [2]
    logprobs = torch.log_softmax(hidden, -1)
    wanted = [float(logprobs[place, token]) for place, token in enumerate(prompt[1:])]
    assert [score.token_id for score in done[2]] == prompt[1:]
    assert [score.logprob for score in done[2]] == pytest.approx(wanted)
    assert table.finished(batch) == {}
