"""Two engines, arranged in each way: the highest rate at which a promise is kept."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.wire.explain import Answer, Arrangement, Promise, Question, Requests
from sluice_simulator.explain import __main__ as program
from sluice_simulator.explain import answer as explained
from sluice_simulator.explain.answer import answered
from sluice_simulator.explain.models import known_model
from sluice_simulator.explain.roofline import roofline

pytestmark = pytest.mark.process

A100 = Accelerator(product="NVIDIA-A100-SXM4-40GB", memory_mib=40_960, count=1)


def asked(**changes: Any) -> Question:
    usual: dict[str, Any] = {
        "model_names": ("Qwen3-8B",),
        "accelerator": A100,
        "chunk_size": 512,
        "page_size": 16,
        "max_prefill_tokens": 16_384,
        "cuda_graph_max_batch": 32,
        "max_running_requests": 256,
        "memory_percent": 83,
        "requests": Requests(prompt_tokens=3000, answer_tokens=60),
        "promise": Promise(ttft_seconds=1.0, itl_seconds=0.05, share=0.97),
    }
    return Question(**usual | changes)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests and rates, so that a run takes milliseconds."""
    monkeypatch.setattr(explained, "REQUESTS", 24)
    monkeypatch.setattr(explained, "MOST_REQUESTS", 60)
    monkeypatch.setattr(explained, "GRID", 3)
    monkeypatch.setattr(explained, "GRID_STEP", 2.5)


def borne(name: Any, question: Question) -> Arrangement:
    model = known_model(question.model_names)
    assert model is not None
    cost = roofline(model, question.accelerator, question.memory_percent)
    return explained.arrangement(name, question, model, cost)


def test_chunks_keep_gaps_that_whole_prompts_break() -> None:
    """A prompt of 3,000 tokens takes 180 ms, a chunk of 512 takes 31."""
    question = asked()
    whole, chunked = borne("whole", question), borne("mixed", question)
    assert chunked.requests_per_second > 2 * whole.requests_per_second > 0
    assert 0.03 < chunked.itl_seconds <= 0.05


@pytest.mark.parametrize(
    ("ttft", "itl", "says"),
    [
        (1.0, 0.012, "a step that decodes takes 13 ms, as all weights are read, so 12 ms"),
        (0.1, 0.05, "a prompt of 3,000 tokens takes 0.18 s to compute, so a first token in 0.1 s"),
    ],
)
def test_what_no_request_could_have_is_said_and_not_simulated(
    ttft: float, itl: float, says: str
) -> None:
    promise = Promise(ttft_seconds=ttft, itl_seconds=itl, share=0.9)
    answer = answered(asked(promise=promise))
    assert answer.arrangements == ()
    assert says in (answer.missing or "")


def test_an_assumed_promise_is_raised_to_twice_what_a_request_alone_gets() -> None:
    tight = Promise(ttft_seconds=0.1, itl_seconds=0.012, share=0.9, assumed=("ttft", "itl"))
    answer = answered(asked(promise=tight))
    assert (answer.missing, len(answer.arrangements)) == (None, 5)
    assert answer.promise is not None
    assert 0.024 < answer.promise.itl_seconds < 0.03
    assert 0.3 < answer.promise.ttft_seconds < 0.4
    loose = Promise(ttft_seconds=5.0, itl_seconds=0.5, share=0.9, assumed=("ttft", "itl"))
    assert answered(asked(promise=loose)).promise == loose


def test_a_promise_that_nothing_keeps_is_a_rate_of_0() -> None:
    none = asked(promise=Promise(ttft_seconds=0.001, itl_seconds=0.05, share=0.9))
    found = borne("mixed", none)
    assert found.requests_per_second == 0
    assert found.ttft_seconds > 0.001


def test_prompts_that_no_engine_takes_are_cut_and_their_answer_is_finite() -> None:
    """Half of the drawn prompts are over the average, which is near the context of 40,960."""
    requests = Requests(prompt_tokens=39_000, answer_tokens=200)
    seconds = Promise(ttft_seconds=10.0, itl_seconds=0.5, share=0.95)
    question = asked(requests=requests, promise=seconds, chunk_size=8192)
    assert borne("mixed", question).requests_per_second > 0
    too_long = answered(asked(requests=Requests(prompt_tokens=40_900, answer_tokens=200)))
    assert "requests of 40,900 + 200 tokens do not fit" in (too_long.missing or "")


@pytest.mark.parametrize(("count", "first"), [(1, 0), (3, 0), (16, 0), (16, 7), (16, 15)])
def test_the_search_for_a_rate_is_right_from_wherever_it_begins(count: int, first: int) -> None:
    for last in range(-1, count):
        looks: list[int] = []

        def is_kept(number: int, last: int = last, looks: list[int] = looks) -> bool:
            looks.append(number)
            return number <= last

        assert explained.last_kept(count, first, is_kept) == last
        assert len(set(looks)) == len(looks)
        assert abs(first - last) > 1 or len(looks) <= (2 if first == last else 4)


def test_each_arrangement_is_told_before_it_is_simulated() -> None:
    lines: list[str] = []
    answer = answered(asked(), lines.append)
    assert [line.rsplit(": ")[1] for line in lines] == [
        f"arrangement {number} of 5" for number in range(1, 6)
    ]
    assert len(answer.arrangements) == 5


def test_a_question_that_cannot_be_read_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert program.main() == 0
    answer = Answer.model_validate_json(capsys.readouterr().out)
    assert "modelNames" in (answer.missing or "")


def test_prefill_and_decode_apart_have_gaps_of_decode_steps_alone() -> None:
    apart = borne("apart", asked(promise=Promise(ttft_seconds=5.0, itl_seconds=0.03, share=0.9)))
    assert apart.requests_per_second > 0
    assert apart.itl_seconds < 0.025


def test_a_model_or_a_product_that_is_not_known_is_said() -> None:
    assert "--model-config" in (answered(asked(model_names=("x", "y"))).missing or "")
    answer = answered(asked(accelerator=Accelerator(product="odd", count=1)))
    assert "no figures for odd" in (answer.missing or "")


def test_what_is_not_installed_is_an_answer_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sluice_simulator.explain.answer", None)
    told = program.answer_or_missing(asked())
    assert told.missing is not None
    assert "make setup" in told.missing


def test_a_rate_above_what_two_engines_compute_is_not_kept_by_a_short_run() -> None:
    """At half more than that, 24 requests have all come before the queue is two seconds long."""
    question = asked(promise=Promise(ttft_seconds=2.0, itl_seconds=10.0, share=0.95))
    model = known_model(question.model_names)
    assert model is not None
    cost = roofline(model, question.accelerator, question.memory_percent)
    rate = 3 * explained.busy_rate(question, cost)
    found = explained._played("mixed", question, model, cost, rate)
    assert not explained.keeps(found, question)


@pytest.mark.parametrize(
    ("name", "product", "rows"),
    [
        ("Qwen3-8B", "NVIDIA-A100-SXM4-40GB", 256),
        # Weights leave 421,420 tokens, of which 411 times 1,024.
        ("Llama-3-8B", "NVIDIA-H100-80GB-HBM3", 400),
        # 2,100,000 tokens, but of 80 GiB a twentieth: rows of 3.35 MB each.
        ("Llama-3.2-1B", "NVIDIA-H100-80GB-HBM3", 1280),
    ],
)
def test_where_nobody_sets_it_as_many_run_at_once_as_an_engine_chooses(
    name: str, product: str, rows: int
) -> None:
    accelerator = Accelerator(product=product, count=1)
    question = asked(
        model_names=(name,),
        accelerator=accelerator,
        max_running_requests=None,
        promise=Promise(ttft_seconds=0.001, itl_seconds=0.00001, share=0.9),
    )
    assert answered(question).max_running_requests == rows
    assert (
        answered(question.model_copy(update={"max_running_requests": 9})).max_running_requests == 9
    )


def test_pages_of_8_bits_hold_twice_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_simulator.explain.answer.NAMES", ())
    whole, half = (answered(asked(has_fp8_pages=fp8)).kv_pool_tokens for fp8 in (False, True))
    assert half in (2 * whole, 2 * whole + 1)
