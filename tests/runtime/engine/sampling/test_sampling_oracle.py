"""Logits are changed as transformers changes them; what it does not have, as the formula says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.draw import restrict
from sluice_runtime.engine.sampling.penalties import LogitBias, Penalties
from sluice_runtime.wire.messages import Sampling

from tests.examples import examples
from tests.runtime.engine.sampling.parameters import rows_of

# One worker imports transformers, and no other.
pytestmark = pytest.mark.xdist_group("transformers")

VOCABULARY = 40
PROMPT, ANSWER = [1, 2, 3, 3], [3, 5, 5, 7]


def logits_of(seed: int, rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def processed(processors: list[Any], logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens]).expand(len(logits), -1)
    for processor in processors:
        logits = processor(ids, logits)
    return logits


def penalise(logits: torch.Tensor, sampling: Sampling) -> None:
    """Row 1 of 2, in a step with no other."""
    penalties = Penalties(2, VOCABULARY, 20, HostDevice())
    penalties.add(1, sampling, np.array(PROMPT + ANSWER), len(PROMPT))
    penalties.send()
    penalised = penalties.penalised_rows(np.array([1]), np.array([len(PROMPT + ANSWER)]))
    assert penalised is not None
    penalties.apply(logits, penalised)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.2, 2),
    top_k=st.sampled_from([-1, 1, 2, 7, 39, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.99, 0.7, 0.3, 1e-6]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
@examples(60)
def test_the_same_tokens_are_kept(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    from transformers.generation import logits_process as hf

    logits = logits_of(seed)
    processors: list[Any] = [hf.TemperatureLogitsWarper(temperature)]
    processors += [hf.TopKLogitsWarper(top_k)] if top_k > 0 else []
    processors += [hf.TopPLogitsWarper(top_p)] if top_p < 1 else []
    processors += [hf.MinPLogitsWarper(min_p)] if min_p > 0 else []
    wanted = processed(processors, logits.clone(), PROMPT)
    rows = rows_of(3, VOCABULARY, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    if rows.restrictions is not None:
        restrict(logits, rows.restrictions)
    got = logits / temperature
    torch.testing.assert_close(got, wanted)


@given(penalty=st.floats(0.1, 2), seed=st.integers(0, 10_000))
@examples(30)
def test_the_repetition_penalty_is_transformers(penalty: float, seed: int) -> None:
    from transformers.generation import logits_process as hf

    logits = logits_of(seed, 1)
    processor = hf.RepetitionPenaltyLogitsProcessor(penalty)
    wanted = processed([processor], logits.clone(), PROMPT + ANSWER)
    penalise(logits, Sampling(repetition_penalty=penalty))
    torch.testing.assert_close(logits, wanted)


def test_presence_and_frequency_are_openais_formula() -> None:
    logits = logits_of(1, 1)
    wanted = logits.clone()
    for token in range(VOCABULARY):
        count = ANSWER.count(token)
        wanted[0, token] -= count * 0.5 + (count > 0) * -1.5
    penalise(logits, Sampling(frequency_penalty=0.5, presence_penalty=-1.5))
    torch.testing.assert_close(logits, wanted)


def test_a_bias_is_added_as_transformers_adds_it() -> None:
    from transformers.generation import logits_process as hf

    logits = logits_of(2, 1)
    biases = [(3, -4.5), (7, 2.0), (39, 100.0)]
    processor = hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in biases])
    wanted = processed([processor], logits.clone(), PROMPT)
    bias = LogitBias(1, HostDevice())
    bias.add(0, biases)
    bias.apply(logits, np.array([0]), np.array([4]))
    torch.testing.assert_close(logits, wanted)


@pytest.mark.parametrize("drawn", range(5))
def test_stop_tokens_are_masked_as_transformers_masks_them(drawn: int) -> None:
    from transformers.generation import logits_process as hf

    logits = logits_of(3, 1)
    processor = hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), 3, [5, 9], device="cpu")
    answer = list(range(10, 10 + drawn))
    wanted = processed([processor], logits.clone(), PROMPT + answer)
    bias = LogitBias(1, HostDevice())
    bias.forbid(0, (5, 9), len(PROMPT) + 3)
    bias.apply(logits, np.array([0]), np.array([len(PROMPT) + drawn]))
    torch.testing.assert_close(logits, wanted)
    assert bool(logits[0, 5].isinf()) == (drawn < 3)
