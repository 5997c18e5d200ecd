"""Two real engines over loopback answer as one engine does that computes and decodes."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from sluice_runtime.errors import StartupError
from sluice_runtime.handover.transfer import registry
from sluice_runtime.model.adapters import adapter_key
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.busy_machine import Stopwatch
from tests.runtime.handover.engines import Answer, pair, running, through
from tests.runtime.handover.transfer.peers import local_backend
from tests.runtime.harness import generate
from tests.runtime.random_adapter import write_random_adapter

pytestmark = pytest.mark.process

END = 258


def prompt(length: int, shift: int = 0) -> list[int]:
    return [(7 * place + shift) % 250 for place in range(length)]


def requests() -> list[Generate]:
    """Of every kind of sampling, of a few lengths; some share a prefix."""
    drawn = Sampling(temperature=1.0, seed=11, top_p=0.9)
    penalised = Sampling(
        temperature=0.8,
        seed=5,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
    )
    waits = Sampling(temperature=1.0, seed=3, min_tokens=6, logit_bias=[(END, 4.0)])
    grammar = Grammar("regex", "[a-f]{9}x", [END], "response_format")
    common = prompt(70)
    return [
        generate("one-token", [65], 9),
        generate("greedy", common, 20),
        generate("shared", common[:64] + prompt(9, 3), 12),
        generate("drawn", prompt(33, 1), 20, sampling=drawn),
        generate("penalised", prompt(48, 2), 20, sampling=penalised),
        generate("waits", prompt(20, 4), 12, sampling=waits, stop_token_ids=[END]),
        generate("scored", prompt(40, 5), 8, logprobs=3),
        generate("scored-prompt", common, 4, logprobs=1, prompt_logprobs=2),
        generate("formed", prompt(24, 6), 20, grammar=grammar, stop_token_ids=[END]),
        generate("long", prompt(600, 7), 10),
        generate("short", prompt(17, 8), 1),
        generate("nothing", prompt(17, 8), 0),
    ]


def test_engines_with_other_weights_under_the_same_name_do_not_go_together() -> None:
    with running("prefill", seed=1) as prefill, running("decode", seed=2) as decode:
        answer = decode.answers(through(prefill, [generate("a", prompt(20), 5)]))["a"]
    ours, theirs = prefill.ready.weights, decode.ready.weights
    assert answer.end.refusal == "prefill_unavailable"
    assert f"differ: weights: {ours} and {theirs}" in str(answer.end.error)


@pytest.mark.parametrize("name", ["qwen3-moe-tiny", "gpt-oss-tiny"])
def test_a_model_of_experts_or_windows_is_handed_over(name: str) -> None:
    asked, model = [generate("a", prompt(70), 12)], f"dummy://{name}"
    with running("mixed", model=model) as engine:
        expected = engine.answers(asked)
    with pair("TCP", model=model) as (prefill, decode):
        same(expected["a"], decode.answers(through(prefill, asked))["a"])


def test_an_adapter_goes_with_the_request(tmp_path: Path) -> None:
    """Both engines compute with the same one; where one of them has another, that is named."""
    folders = {name: write_random_adapter(tmp_path / name, i) for i, name in enumerate("abc", 5)}
    refs = [{"name": name, "uri": str(folder)} for name, folder in folders.items()]
    other = {"name": "c", "uri": str(folders["a"])}
    keys = {name: adapter_key(name, folder) for name, folder in folders.items()}
    common = prompt(70)
    asked = [generate("base", common, 12)]
    asked += [generate(name, common, 12, adapter=key) for name, key in keys.items()]
    with running("mixed", adapters=tuple(refs)) as engine:
        expected = engine.answers(asked)
    assert len({tuple(answer.tokens) for answer in expected.values()}) == 4
    with (
        running("prefill", adapters=(*refs[:2], other)) as prefill,
        running("decode", adapters=tuple(refs)) as decode,
    ):
        for _ in range(2):  # with and without cached prefixes
            answers = decode.answers(through(prefill, asked))
            for name in ("base", "a", "b"):
                same(expected[name], answers[name])
            end = answers["c"].end
            assert end.refusal == "prefill_unavailable"
            assert f"adapter {keys['c']} is not loaded here; loaded: a@" in str(end.error)


PAIRS = [
    ("TCP", True, "host to host"),
    ("TCP", False, "staged to host"),
    ("Mooncake", False, "host to staged"),
    ("Mooncake", True, "staged to staged"),
    ("NIXL", True, "host to host"),
    pytest.param("NIXL", False, "staged to staged", marks=pytest.mark.full),
    pytest.param("Mooncake", False, "host to host", marks=pytest.mark.full),
    pytest.param("TCP", True, "staged to staged", marks=pytest.mark.full),
    pytest.param("TCP", False, "host to host", marks=pytest.mark.full),
    pytest.param("Mooncake", True, "host to host", marks=pytest.mark.full),
]
"""Backend, whether steps overlap, and whose pools count as a device's."""


@pytest.fixture(autouse=True)
def nixl_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of RDMA, for which there is no adapter."""
    there = dict(registry.BACKENDS) | {"NIXL": lambda settings: local_backend("NIXL")}
    monkeypatch.setattr(registry, "BACKENDS", there)


@pytest.fixture(scope="module", params=[16, 1], ids="pages-of-{}".format)
def page_size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def expected(page_size: int) -> dict[str, Answer]:
    with running("mixed", page_size=page_size, chunk_size=64) as engine:
        return engine.answers(requests())


@pytest.mark.parametrize(("backend", "overlap", "pools"), PAIRS)
def test_the_answers_are_those_of_one_engine(
    backend: str, overlap: bool, pools: str, page_size: int, expected: dict[str, Answer]
) -> None:
    settings = {"page_size": page_size, "chunk_size": 64, "overlap": overlap}
    theirs, _, ours = pools.split()
    with (
        running("prefill", backend, staged=theirs == "staged", **settings) as prefill,
        running("decode", backend, staged=ours == "staged", **settings) as decode,
    ):
        first = decode.answers(through(prefill, requests()))
        again = [
            msgspec.structs.replace(one, request_id=f"{one.request_id}-again") for one in requests()
        ]
        second = decode.answers(through(prefill, again))
        assert decode.last is not None
        load = decode.last.load
        assert load.steps["EXTEND"] == load.steps["MIXED"] == 0
        assert load.handover is not None
        assert (load.handover.failures, load.handover.recomputed) == ({}, 0)
        assert load.handover.read_bytes > 600 * decode.engine.pool.page_bytes / page_size
    for name, answer in expected.items():
        same(answer, first[name])
        same(answer, second[f"{name}-again"])
    assert second["long-again"].deltas[0].cached_tokens >= 560
    assert bytes(first["formed"].tokens[:10]).decode()[-1] == "x"


def test_an_answer_that_another_pair_began_goes_on(
    page_size: int, expected: dict[str, Answer]
) -> None:
    resumed = [
        msgspec.structs.replace(
            one,
            request_id=f"{one.request_id}/{cut}",
            generated_ids=expected[one.request_id].tokens[:cut],
        )
        for one in requests()
        for cut in {1, 7, len(expected[one.request_id].tokens) - 1}
        if 0 < cut < len(expected[one.request_id].tokens)
    ]
    with pair("TCP", page_size=page_size, chunk_size=64) as (prefill, decode):
        answers = decode.answers(through(prefill, resumed))
        assert decode.last is not None
        assert decode.last.load.handover is not None
        assert decode.last.load.handover.failures == {}
        assert decode.last.load.steps["EXTEND"] == 0
    for one in resumed:
        name, cut = one.request_id.split("/")[0], len(one.generated_ids)
        whole, rest = expected[name], answers[one.request_id]
        assert rest.tokens == whole.tokens[cut:], rest.end
        assert rest.end.finish_reason == whole.end.finish_reason
        assert [score.rank for score in rest.logprobs] == [s.rank for s in whole.logprobs[cut:]]
        assert rest.prompt_logprobs == []


def same(expected: Answer, answer: Answer) -> None:
    assert answer.tokens == expected.tokens, answer.end
    assert answer.end.finish_reason == expected.end.finish_reason
    for ours, theirs in zip(answer.logprobs, expected.logprobs, strict=True):
        assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    for ours, theirs in zip(answer.prompt_logprobs, expected.prompt_logprobs, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_a_prefill_engine_that_is_not_there_is_named_in_the_refusal() -> None:
    with pair("TCP") as (prefill, decode):
        asked = through(prefill, [generate("a", [1, 2, 3], 4)])[0]
        assert asked.prefill is not None
        other_life = msgspec.structs.replace(asked.prefill, epoch="another")
        nobody = msgspec.structs.replace(asked.prefill, port=1, name="prefill-9")
        answers = decode.answers(
            [
                msgspec.structs.replace(asked, request_id="b", prefill=other_life),
                msgspec.structs.replace(asked, request_id="c", prefill=nobody),
                asked,
            ]
        )
    assert answers["a"].end.finish_reason == "length"
    assert [answers[name].end.refusal for name in "bc"] == ["prefill_unavailable"] * 2
    assert "OtherEpoch" in (answers["b"].end.error or "")
    assert "prefill-9" in (answers["c"].end.error or "")


def test_nothing_waits_for_a_turn_of_an_idle_loop() -> None:
    """Idle loops wake once a second; each of a request's messages wakes them before that, or this
    would take a second a request and more."""
    with pair("TCP") as (prefill, decode):
        decode.answers(through(prefill, [generate("first", [1, 2], 2)]))
        watch = Stopwatch()
        for number in range(10):
            decode.answers(through(prefill, [generate(f"r{number}", prompt(20, number), 2)]))
        assert watch.seconds < 10


def test_what_a_role_lacks_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("prefill") as prefill:
        taken = prefill.ready.bootstrap_port
        with (
            pytest.raises(StartupError, match=f"kvTransfer.bootstrapPort: {taken} is not allowed"),
            running("prefill", bootstrap_port=taken),
        ):
            pass
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with (
        pytest.raises(StartupError, match=r"kvTransfer.backend: .*Mooncake.* is not allowed"),
        running("decode", "Mooncake"),
    ):
        pass
