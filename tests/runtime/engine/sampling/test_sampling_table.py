"""Rows of unlike parameters in one batch get what each would get alone, whoever comes and goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_kernels import reference
from sluice_runtime.engine.device import CPU, Column, Device, HostDevice
from sluice_runtime.engine.sampling.draw import SamplingTable, TableSize
from sluice_runtime.engine.sampling.penalties import DraftsBefore, Penalties
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.scheduler.batch import Batch, ForwardMode, RowAdded
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.wire.messages import Sampling

from tests.examples import examples
from tests.runtime.engine.late_device import LateDevice

VOCABULARY = 30
ROWS = 6
SIZE = TableSize(ROWS, VOCABULARY, 64)

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    top_k=st.sampled_from([-1, 1, 5, 29]),
    seed=st.integers(0, 2**63 - 1),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5]),
    logit_bias=st.lists(
        st.tuples(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, 1.5, 3.0])), max_size=3
    ),
    min_tokens=st.integers(0, 4),
)


@dataclass
class Asked:
    """A request as the scheduler would know it."""

    sampling: Sampling
    prompt: list[int]
    stop_token_ids: tuple[int, ...]
    answer: list[int] = field(default_factory=list)

    def added(self, row: int) -> RowAdded:
        looks_back = self.sampling.penalises
        return RowAdded(
            row,
            "r",
            self.sampling,
            len(self.prompt),
            key_of(self.prompt + self.answer) if looks_back else b"",
            self.stop_token_ids if self.sampling.min_tokens else (),
        )


REQUESTS = st.builds(
    Asked,
    SAMPLINGS,
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5),
    st.sets(st.integers(0, VOCABULARY - 1), max_size=2).map(lambda ids: tuple(sorted(ids))),
)


def deltas(dropped: tuple[int, ...] = (), added: tuple[RowAdded, ...] = ()) -> Batch:
    return Batch(step=1, mode=ForwardMode.IDLE, dropped_rows=dropped, added_rows=added)


def logits_after(tokens: list[int]) -> torch.Tensor:
    """A model that depends on the tokens before, and on nothing else."""
    seed = hash(tuple(tokens)) % 2**31
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
    return logits.round()  # so that some are equal


def step(table: SamplingTable, running: dict[int, Asked], place: torch.device = CPU) -> None:
    """One token for each of `running`, by row."""
    asked = list(running.values())
    logits = torch.stack([logits_after(one.prompt + one.answer) for one in asked])
    positions = np.array([len(one.prompt + one.answer) for one in asked])
    tokens = table.sample(logits.to(place), list(running), positions)
    for one, token in zip(asked, tokens.tolist(), strict=True):
        one.answer.append(token)


def alone(asked: Asked, tokens: int) -> list[int]:
    table = SamplingTable(SIZE)
    copy = Asked(asked.sampling, asked.prompt, asked.stop_token_ids)
    table.apply(deltas(added=(copy.added(0),)))
    for _ in range(tokens):
        step(table, {0: copy})
    return copy.answer


@given(
    requests=st.lists(REQUESTS, min_size=2, max_size=ROWS),
    retracted=st.lists(st.integers(0, ROWS - 1), max_size=6),
)
@examples(30)
def test_a_batch_of_mixed_rows_equals_each_row_alone(
    requests: list[Asked], retracted: list[int]
) -> None:
    """Some are sent back now and then, and come again in another row."""
    table = SamplingTable(SIZE)
    rows = list(range(ROWS))[::-1]
    running: dict[int, Asked] = {}
    waiting = list(requests)
    for victim in [*retracted, None, None]:
        while waiting:
            row = rows.pop(0)
            running[row] = waiting.pop()
            table.apply(deltas(added=(running[row].added(row),)))
        step(table, running)
        if victim in running:
            waiting.append(running.pop(victim))
            rows.append(victim)
            table.apply(deltas(dropped=(victim,)))
    for asked in requests:
        assert asked.answer == alone(asked, len(asked.answer))


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    blocks=st.sampled_from([2, 100]),
)
@examples(12)
def test_tokens_that_are_verified_at_once_are_those_drawn_one_after_another(
    requests: list[Asked], seed: int, blocks: int
) -> None:
    """Some drafts are wrong, and later steps are not misled by these."""
    verified_at_once(requests, seed, blocks)


@pytest.mark.parametrize("seed", [0, 3, 5, 6, 12])
def test_penalties_count_the_drafts_before_a_token_and_none_that_are_not_kept(seed: int) -> None:
    """A token behind a wrong draft would otherwise be likely in the next step."""
    sampling = Sampling(temperature=1.0, frequency_penalty=-2.0, seed=seed)
    verified_at_once([Asked(sampling, [1, 2], ())], seed, 100)


def verified_at_once(requests: list[Asked], seed: int, blocks: int) -> None:
    draw = random.Random(seed)
    table = SamplingTable(SIZE)
    table._at_once = blocks
    table.apply(deltas(added=tuple(asked.added(row) for row, asked in enumerate(requests))))
    expected = [alone(asked, 8) for asked in requests]
    for _ in range(2):
        verify(table, requests, expected, draw)
    for asked, answer in zip(requests, expected, strict=True):
        assert asked.answer == answer[: len(asked.answer)]


def verify(
    table: SamplingTable, requests: list[Asked], answers: list[list[int]], draw: random.Random
) -> None:
    """One step; none is given more than its answer."""
    rows: list[int] = []
    known: list[list[int]] = []
    step_tokens: list[int] = []
    counts: list[int] = []
    for row, (asked, answer) in enumerate(zip(requests, answers, strict=True)):
        coming = answer[len(asked.answer) :]
        drafts = [draw.choice([token, token, 0]) for token in coming[: draw.randint(0, 3)]]
        sure = asked.prompt + asked.answer
        step_tokens += [sure[-1], *drafts]
        known += [sure + drafts[:count] for count in range(len(drafts) + 1)]
        counts += range(len(drafts) + 1)
        rows += [row] * (len(drafts) + 1)
    before = DraftsBefore(
        torch.tensor(step_tokens),
        np.arange(len(step_tokens)),
        np.array(counts),
        lambda: step_tokens,
    )
    logits = torch.stack([logits_after(tokens) for tokens in known])
    positions = np.array([len(tokens) for tokens in known])
    proposed = table.propose(logits.clone(), rows, positions, before)
    drawn = table.sample(logits, rows, positions, before)
    assert torch.equal(proposed, drawn)
    wrong: set[int] = set()
    for row, count, token, draft in zip(rows, counts, drawn.tolist(), step_tokens, strict=True):
        if count and requests[row].answer[-1] != draft:
            wrong.add(row)
        if row not in wrong:
            requests[row].answer.append(token)


def answers_on(device: Device, requests: list[Asked], backend: Backend = TORCH) -> list[list[int]]:
    """The first tokens of requests that run side by side."""
    table = SamplingTable(SIZE, device, backend)
    running = {row: replace(asked, answer=[]) for row, asked in enumerate(requests)}
    table.apply(deltas(added=tuple(asked.added(row) for row, asked in running.items())))
    for _ in range(4):
        step(table, running, device.place)
    return [asked.answer for asked in running.values()]


SIDE_BY_SIDE = st.lists(REQUESTS, min_size=1, max_size=ROWS)


@given(requests=SIDE_BY_SIDE)
@examples(20)
def test_a_device_with_a_memory_of_its_own_draws_the_same(requests: list[Asked]) -> None:
    """Nothing is read from it, and staging buffers are used again and again."""
    device = LateDevice()
    assert answers_on(device, requests) == answers_on(HostDevice(), requests)
    assert device.waited == 0


@given(requests=SIDE_BY_SIDE)
@examples(10)
def test_a_kernel_for_whole_rows_draws_the_same(requests: list[Asked]) -> None:
    """Its reference, on a device of its own, beside the operations that it replaces."""
    kernel = replace(TORCH, sample_rows=reference.sample_rows)
    device = LateDevice()
    assert answers_on(device, requests, kernel) == answers_on(HostDevice(), requests)
    assert device.waited == 0


def test_parameters_travel_when_rows_change_and_no_step_sends_them_again() -> None:
    """A step sends two numbers a row."""
    sent: list[int] = []

    class Counted(LateDevice):
        def upload(self, columns: Sequence[Column]) -> Sequence[torch.Tensor]:
            sent.append(sum(column.nbytes for column in columns))
            return super().upload(columns)

    table = SamplingTable(SIZE, Counted(), replace(TORCH, sample_rows=reference.sample_rows))
    asked = {row: Asked(Sampling(seed=row, top_p=0.9), [row], ()) for row in range(3)}
    table.apply(deltas(added=tuple(asked[row].added(row) for row in asked)))
    of_rows = len(asked) * 5 * 2 * 8  # five parameters, each with its place
    assert sent == [of_rows]
    for _ in range(2):
        table.apply(deltas())
        step(table, asked)
    assert sent[1:] == [len(asked) * 2 * 4] * 2
    table.apply(deltas(dropped=(0,)))
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("sampling", "asks"),
    [
        (Sampling(presence_penalty=0.1), {}),
        (Sampling(logit_bias=[(1, 1.0)]), {}),
        (Sampling(min_tokens=2), {"stop_token_ids": (4,)}),
        (Sampling(), {"logprobs": 0}),
        (Sampling(), {"has_grammar": True}),
    ],
)
def test_rows_are_plain_while_none_asks_for_more_than_the_kernel_does(
    sampling: Sampling, asks: dict[str, Any]
) -> None:
    """Ranks know of a grammar from the batch alone."""
    table = SamplingTable(SIZE)
    table.apply(deltas(added=(RowAdded(0, "plain", Sampling(top_p=0.5, top_k=3, min_p=0.1)),)))
    assert table.plain
    table.apply(deltas(added=(RowAdded(2, "special", sampling, 1, key_of([1]), **asks),)))
    assert not table.plain
    table.apply(deltas(dropped=(2,)))
    assert table.plain


def test_no_stop_token_is_drawn_before_its_time() -> None:
    table = SamplingTable(SIZE)
    asked = Asked(Sampling(temperature=0.0, logit_bias=[(4, 100.0)], min_tokens=3), [1], (4,))
    table.apply(deltas(added=(asked.added(2),)))
    for _ in range(4):
        step(table, {2: asked})
    assert 4 not in asked.answer[:3]
    assert asked.answer[3] == 4


def test_a_row_is_rid_of_what_the_request_before_it_asked_for() -> None:
    table = SamplingTable(SIZE)
    before = Asked(Sampling(logit_bias=[(4, 100.0)], presence_penalty=2.0, min_tokens=9), [1], (7,))
    after = Asked(Sampling(temperature=0.0), [1, 2], ())
    table.apply(deltas(added=(before.added(0),)))
    step(table, {0: before})
    table.apply(deltas(dropped=(0,), added=(after.added(0),)))
    for _ in range(3):
        step(table, {0: after})
    assert after.answer == alone(after, 3)


def test_rows_that_ask_for_nothing_cost_nothing() -> None:
    """Neither counts nor edits are looked at for them."""
    table = SamplingTable(TableSize(ROWS, 1_000_000, 64))
    asked = Asked(Sampling(), [1], (7,))
    table.apply(deltas(added=tuple(asked.added(row) for row in range(ROWS))))
    assert table._bias._all is None
    assert table._penalties.penalised_rows(np.arange(ROWS), np.ones(ROWS, np.int64)) is None


def test_a_row_that_is_dropped_before_it_was_sent_leaves_no_counts_behind() -> None:
    penalties, sampling = Penalties(ROWS, 8, 4, HostDevice()), Sampling(frequency_penalty=1.0)
    penalties.add(1, sampling, np.array([1, 5, 5]), 1)
    penalties.drop(1)
    penalties.add(1, sampling, np.array([1, 6]), 1)
    penalties.send()
    assert penalties._counts[1].tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
