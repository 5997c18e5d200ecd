"""When the tokens and logprobs of an answer, as a client gets them, are the oracle's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from sluice_runtime.wire.messages import Generate, TokenDelta, TokenLogprob

from tests.runtime.agreement.oracle import Oracle, tolerance


def check_answer(oracle: Oracle, request: Generate, deltas: Sequence[TokenDelta]) -> int:
    """Of a request that may score its prompt, its answer, both or neither. Returns how many tokens
    of a greedy answer had to be as they are."""
    answer = [token for delta in deltas for token in delta.token_ids]
    tokens = [*request.prompt_ids, *answer]
    logits = oracle.logits(tokens, len(tokens))
    wanted = torch.log_softmax(logits, -1)
    within = 2 * tolerance(logits)  # a logit's and that of the sum
    prompt = len(request.prompt_ids)
    scores = [score for delta in deltas for score in delta.logprobs]
    assert len(scores) == (len(answer) if request.logprobs >= 0 else 0)
    check_scores(scores, wanted[prompt - 1 :], answer, request.logprobs, within)
    told = [d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None]
    assert len(told) == (request.prompt_logprobs >= 0)
    for prompt_scores in told:
        assert len(prompt_scores) == prompt - 1
        check_scores(prompt_scores, wanted, tokens[1:], request.prompt_logprobs, within)
    greedy = request.sampling.temperature == 0
    return _check_best(logits[prompt - 1 : -1], answer) if greedy else 0


def _check_best(wanted: torch.Tensor, answer: Sequence[int]) -> int:
    best, second = wanted.topk(2, dim=-1).values.unbind(-1)
    clear = best - second > 4 * tolerance(wanted)
    assert torch.equal(torch.tensor(answer)[clear], wanted.argmax(-1)[clear])
    return int(clear.sum())


def check_scores(
    scores: Sequence[TokenLogprob],
    wanted: torch.Tensor,
    tokens: Sequence[int],
    top: int,
    within: float,
) -> None:
    for score, line, token in zip(scores, wanted, tokens, strict=False):
        assert score.token_id == token
        assert score.logprob == pytest.approx(float(line[token]), abs=within)
        better = (line > line[token] + within).sum(), (line > line[token] - within).sum()
        assert better[0] < score.rank <= better[1] + 1
        best = line.topk(top).values.tolist()
        assert [value for _, value in score.top] == pytest.approx(best, abs=within)
