"""The invariants of the scheduler hold over random sequences of operations."""

from __future__ import annotations

import random
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.host_tier import _digest, _last_digest
from sluice_runtime.scheduler.pacing import LayerSplit
from sluice_runtime.scheduler.policies import POLICIES
from sluice_runtime.scheduler.prefix_node import TOKEN_BYTES
from sluice_runtime.scheduler.settings import HostPages

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, SplitChunk, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to

ADAPTERS = ("sql", "poems", "legal")
SIZES = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 4, 16]),
        "chunk_pages": st.sampled_from([None, 1, 2, 5]),
        "pool_pages": st.integers(3, 14),
        "rows": st.sampled_from([4, 6, 3, 1, 2, 5]),
        "mixed": st.booleans(),
        "conservativeness": st.sampled_from([0.05, 1.0]),
        "shuffle": st.integers(0, 10),
        "prefill_tokens": st.sampled_from([1, 24, 4096]),
        "prefix_cache": st.sampled_from([True, True, True, False]),
        "eviction": st.sampled_from(list(EVICTIONS)),
        "overlap": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority", *sorted(POLICIES)]),
        "threshold": st.sampled_from([0, 10]),
        "adapters": st.integers(1, 3),
        "drafts": st.sampled_from([0, 1, 4, 20]),
        "split": st.sampled_from([None, (1, 1), (3, 2), (2, 4)]),
        "host_pages": st.sampled_from(
            [None, None, HostPages(1), HostPages(5), HostPages(2, 9), HostPages(40, 40)]
        ),
        "copy_steps": st.integers(0, 3),
        "bad_every": st.sampled_from([0, 0, 2, 5]),
        "draft_model": st.booleans(),
        "draft_head": st.booleans(),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, go and are stepped in any order; at the end everything has ended, once."""

    @initialize(sizes=SIZES)
    def build(self, sizes: dict[str, Any]) -> None:
        page = sizes["page_size"]
        pages = sizes["pool_pages"] * max(1, 8 // page)
        chunk = sizes["chunk_pages"]
        order = list(range(pages))
        random.Random(sizes["shuffle"]).shuffle(order)
        built = settings_of(
            pool_tokens=page * pages,
            page_size=page,
            chunk_size=chunk and chunk * page,
            max_running_requests=sizes["rows"],
            max_queued_requests=12,
            mixed=sizes["mixed"],
            conservativeness=sizes["conservativeness"],
            max_prefill_tokens=sizes["prefill_tokens"],
            context=40,
            prefix_cache=sizes["prefix_cache"],
            eviction=sizes["eviction"],
            policy=sizes["policy"],
            priority_threshold=sizes["threshold"],
            max_adapters=sizes["adapters"],
            draft_tokens=sizes["drafts"],
            layers=5,
            host_pages=sizes["host_pages"],
            draft_model=sizes["draft_model"],
            draft_head=sizes["draft_model"] and sizes["draft_head"],
        )
        self.bench = Bench(built, order, overlap=sizes["overlap"])
        self.bench.runner.host.steps = sizes["copy_steps"]
        self.bench.runner.host.bad_every = sizes["bad_every"]
        # The engine computes no groups of layers where a draft model computes the prompt, too.
        if chunk and (split := sizes["split"]) and not sizes["draft_model"]:
            pages_split, layers = split
            splitting = SplitChunk(chunk * page, LayerSplit(pages_split * page, layers))
            self.bench.scheduler._pacing._choice = splitting
        self.bench.scheduler.take_adapters(dict.fromkeys(ADAPTERS, ""))
        self.prompts: dict[str, list[int]] = {}
        self.generated: dict[str, int] = {}
        """Tokens of the answer that another engine generated."""
        self.disturbed: set[str] = set()
        self.scored: set[str] = set()
        self.scored_rows: dict[int, bool] = {}
        """Whether the prompt of a row is scored, by row."""
        launch = self.bench.launch

        def launched() -> Batch | None:
            if batch := launch():
                self.scored_prompts_share_no_step_with_answers(batch)
            return batch

        self.bench.launch = launched  # type: ignore[method-assign]

    @rule(
        length=st.integers(0, 45),
        answer=st.integers(0, 30),
        stop=st.sampled_from([[], [3, 7, 11]]),
        ignore_eos=st.booleans(),
        branch=st.tuples(st.integers(0, 40), st.integers(0, 3)),
        copies=st.integers(1, 4),
        generated=st.sampled_from([0, 0, 0, 1, 9]),
        fields=st.fixed_dictionaries(
            {
                "cache_salt": st.sampled_from(["", "", "other"]),
                "priority": st.sampled_from([0, 0, 5, 20]),
                "routing_key": st.sampled_from(["", "a", "b"]),
                "adapter": st.sampled_from(["", "", *ADAPTERS]),
                "prompt_logprobs": st.sampled_from([-1, -1, -1, 0]),
            }
        ),
    )
    def arrive(
        self,
        length: int,
        answer: int,
        stop: list[int],
        ignore_eos: bool,
        branch: tuple[int, int],
        copies: int,
        generated: int,
        fields: dict[str, Any],
    ) -> None:
        """Prompts are alike up to a token, and go four ways from there."""
        prompt = [(i + branch[1] * (i >= branch[0])) % 50 for i in range(length)]
        begun = list(takewhile(lambda token: token not in stop, answer_to(prompt, generated)))
        fields |= {"stop_token_ids": stop, "ignore_eos": ignore_eos, "generated_ids": begun}
        for _ in range(copies):
            name = f"r{len(self.prompts)}"
            self.prompts[name], self.generated[name] = prompt, len(begun)
            if fields["prompt_logprobs"] >= 0 and not begun:
                self.scored.add(name)
            self.bench.add(request(name, prompt, answer, **fields))

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @rule(pick=st.integers(0, 30), how=st.sampled_from(["abort", "fail"]))
    def disturb(self, pick: int, how: str) -> None:
        name = f"r{pick}"
        self.disturbed.add(name)
        if how == "abort":
            self.bench.scheduler.abort(name)
        else:
            self.bench.scheduler.fail(name, "broken on purpose")

    @precondition(lambda self: self.prompts)
    @rule(pick=st.integers(0, 30))
    def abort_between_forward_and_process(self, pick: int) -> None:
        name = f"r{pick % len(self.prompts)}"
        self.bench.launch()
        self.disturbed.add(name)
        self.bench.scheduler.abort(name)
        before = len(self.bench.answers.get(name, []))
        while self.bench.in_flight:
            self.bench.land()
        assert len(self.bench.answers.get(name, [])) == before

    @rule()
    def flush(self) -> None:
        self.bench.scheduler.flush_cache()

    @invariant()
    def cached_tokens_are_whole_pages_of_the_prompt(self) -> None:
        for name, tokens in self.bench.cached.items():
            assert 0 <= tokens < len(self.prompts[name])
            assert tokens % self.bench.settings.page_size == 0

    def scored_prompts_share_no_step_with_answers(self, batch: Batch) -> None:
        self.scored_rows |= {added.row: added.prompt_logprobs >= 0 for added in batch.added_rows}
        if any(self.scored_rows[extend.row] for extend in batch.extend_rows):
            assert not batch.answering_rows

    @invariant()
    def scored_prompts_are_computed_whole_and_told_once(self) -> None:
        told: dict[str, list[int]] = {}
        for delta in self.bench.deltas:
            if delta.prompt_logprobs is not None:
                assert delta.request_id not in told
                told[delta.request_id] = [score.token_id for score in delta.prompt_logprobs]
        assert told.keys() <= self.scored
        for name in self.scored & self.bench.cached.keys():
            assert self.bench.cached[name] == 0
        for name in self.scored & self.bench.terminals.keys():
            (end,) = self.bench.terminals[name]
            if name in told or end.finish_reason in ("stop", "length"):
                assert told.get(name, []) == self.prompts[name][1:]

    @invariant()
    def every_page_has_one_owner(self) -> None:
        self.bench.scheduler.check_integrity()

    @invariant()
    def few_adapters_run_at_once(self) -> None:
        active = self.bench.scheduler._table.active()
        found = {request.adapter for request in active} - {""}
        assert len(found) <= self.bench.settings.max_adapters

    @invariant()
    def pages_are_hashed_by_all_tokens_up_to_them(self) -> None:
        cache = self.bench.scheduler._kv._cache
        width = self.bench.settings.page_size * TOKEN_BYTES
        for node in cache.nodes() if cache.packing.hash_pages else ():
            digest = _last_digest(node.parent) if node.digests else b""
            for at, known in enumerate(node.digests[: len(node.page_ids)]):
                digest = _digest(digest, node.packed[at * width : (at + 1) * width])
                assert known == digest

    @invariant()
    def answers_do_not_depend_on_batching(self) -> None:
        for name, answer in self.bench.answers.items():
            begun = self.generated[name]
            assert answer == answer_to(self.prompts[name], begun + len(answer))[begun:]

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.run()
        status = self.bench.scheduler.status()
        assert status.pages_available == status.pages_total
        assert (status.queued_requests, status.queued_tokens, status.running_requests) == (0, 0, 0)
        assert self.bench.terminals.keys() == self.prompts.keys()
        for name, terminals in self.bench.terminals.items():
            assert len(terminals) == 1, f"{name} ended {len(terminals)} times"
            if terminals[0].finish_reason == "error" and name not in self.disturbed:
                assert self._refused(name, terminals[0].error or "")

    def _refused(self, name: str, error: str) -> bool:
        """The only errors without a cause from outside: what can never run, and a full queue."""
        limits = self.bench.settings.limits
        impossible = len(self.prompts[name]) + 1 > limits.request_tokens
        return impossible or any(
            word in error for word in ("0 tokens", "max_tokens 0", "queue is full")
        )


STEPS: Any = {"stateful_step_count": 40, "suppress_health_check": [HealthCheck.too_slow]}
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = examples(40, **STEPS)


@pytest.mark.process
class TestSchedulerLonger(SchedulerMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = examples(120, **STEPS)
