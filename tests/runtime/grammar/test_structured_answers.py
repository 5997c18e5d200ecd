"""Answers of an engine with random weights at temperature 1: what they say is up to their grammar.

A real compile thread, a pool that is too small, cut prompts and mixed steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import msgspec
import pytest
from sluice_runtime.engine.build import Engine
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.wire.messages import Abort, Grammar, Sampling

from tests.runtime.grammar.drawing import BEYOND_LIMITS
from tests.runtime.grammar.driving import EOS, ask, engine_of, grammar, run
from tests.runtime.grammar.schemas import SCHEMAS

pytestmark = pytest.mark.process

FORMATS = jsonschema.FormatChecker(formats=["date", "ipv4", "uuid"])


def schema_of(name: str) -> Grammar:
    return grammar("json_schema", json.dumps(usable_schema(SCHEMAS[name])))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(max_queued_requests=256) as built:
        yield built


def test_a_short_queue_holds_for_a_grammar_as_many_as_may_run_and_wait() -> None:
    with engine_of(max_queued_requests=1) as short:
        most = short.settings.max_running_requests + 1
        answers = run(short, [ask(f"{i}", grammar("regex", "[ab]{2}"), 9) for i in range(most)])
    assert {end.finish_reason for end in answers.ends.values()} == {"stop"}


def test_answers_validate_against_their_schemas(engine: Engine) -> None:
    asked = [ask(name, schema_of(name)) for name in SCHEMAS]
    answers = run(engine, asked)
    assert len(asked) >= 30
    for name, schema in SCHEMAS.items():
        assert answers.ends[name].finish_reason == "stop", (name, answers.ends[name].error)
        value = json.loads(answers.text(name))
        jsonschema.validate(value, schema, format_checker=FORMATS)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=1.7, seed=3),
        Sampling(temperature=1.0, top_p=0.3, seed=4),
        Sampling(temperature=1.0, top_k=1, seed=5),
    ],
    ids=["greedy", "hot", "top_p", "top_k"],
)
def test_every_way_of_drawing_keeps_to_a_pattern(engine: Engine, sampling: Sampling) -> None:
    pattern = "(yes|no), [0-9]{3,7}!"
    answers = run(engine, [ask("draw", grammar("regex", pattern), sampling=sampling)])
    assert answers.ends["draw"].finish_reason == "stop"
    assert re.fullmatch(pattern, answers.text("draw"))


def test_a_complete_answer_ends(engine: Engine) -> None:
    answers = run(engine, [ask("end", grammar("ebnf", 'root ::= "a" "b"?'))])
    assert answers.text("end") in ("a", "ab")
    assert answers.tokens["end"][-1] == EOS


def test_with_overlap_answers_are_the_same(engine: Engine) -> None:
    names = ["record", "array of records", "date-time", "enum"]
    asked = [ask(name, schema_of(name)) for name in names]
    free = [ask(f"free {i}", None, 40) for i in range(2)]
    plain = run(engine, [*asked, *free])
    assert run(engine, [*asked, *free], overlap=True).tokens == plain.tokens


def test_a_step_with_a_grammar_leaves_other_rows_alone(engine: Engine) -> None:
    free = [ask(f"free {i}", None, 24, sampling=Sampling(temperature=0.0)) for i in range(3)]
    alone = run(engine, free)
    bound = [ask(f"bound {i}", grammar("regex", "[0-9]{20}")) for i in range(3)]
    both = run(engine, [*free, *bound])
    for request in free:
        assert both.tokens[request.request_id] == alone.tokens[request.request_id]
    assert all(re.fullmatch("[0-9]{20}", both.text(f"bound {i}")) for i in range(3))


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_a_grammar_that_is_slow_to_follow_ends_its_own_request_alone(
    engine: Engine, overlap: bool
) -> None:
    """Only where the answer comes to it; the streams beside it have all their tokens."""
    wanted = grammar("ebnf", f"root ::= [xy]{{{80 + overlap}}} s\n{BEYOND_LIMITS}")
    free = [ask(f"free {i}", None, 600, sampling=Sampling(0.0), ignore_eos=True) for i in range(2)]
    run(engine, [ask("known", wanted, 2)])
    alone = run(engine, free)
    both = run(engine, [*free, ask("slow", wanted)], overlap=overlap)
    assert both.order[0] == "slow"
    assert both.ends["slow"].refusal == "invalid"
    assert str(both.ends["slow"].error).startswith("response_format: following it takes")
    assert 79 <= len(both.tokens["slow"]) <= 81
    for request in free:
        assert both.tokens[request.request_id] == alone.tokens[request.request_id]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_an_answer_that_was_retracted_goes_on_where_it_was(overlap: bool) -> None:
    wanted = grammar("regex", "([0-9]{3} [a-z]{3}, ){12}end")
    asked = [ask(f"{i}", wanted, 120, sampling=Sampling(1.0, seed=i)) for i in range(6)]
    with engine_of(kv_pool_tokens=4096) as roomy:
        calm = run(roomy, asked)
    with engine_of(kv_pool_tokens=256, page_size=4, chunk_size=8, reserve_percent=10) as tight:
        answers = run(tight, asked, overlap=overlap)
        assert tight.scheduler.status().retractions > 0
        assert tight.scheduler.status().chunk_cuts > 0
    for request in asked:
        name = request.request_id
        assert re.fullmatch("([0-9]{3} [a-z]{3}, ){12}end", answers.text(name))
        assert answers.tokens[name] == calm.tokens[name]


def test_requests_do_not_wait_for_the_grammar_of_another(engine: Engine) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    slow = ask("slow", grammar("json_schema", json.dumps(usable_schema(schema))), 1)
    free = ask("free", None, 16)
    answers = run(engine, [slow, free], until=1)
    assert answers.order == ["free"]
    assert len(engine.grammars) == 1
    assert "slow" in run(engine, [], until=1).ends


def test_what_the_compiler_refuses_ends_the_request(engine: Engine) -> None:
    end = run(engine, [ask("open", grammar("regex", "a(b"))]).ends["open"]
    assert end.refusal == "invalid"
    assert "unclosed group" in str(end.error)


def test_a_request_is_aborted_while_its_grammar_is_compiled(engine: Engine) -> None:
    gone = ask("gone", grammar("regex", "x{1,300}y{7}"))
    answers = run(engine, [gone, Abort("gone")])
    assert answers.ends["gone"].finish_reason == "abort"
    assert len(engine.grammars) == 0
    assert engine.scheduler.status().running_requests == 0


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_an_answer_that_nothing_may_follow_ends_and_disturbs_no_other(
    engine: Engine, overlap: bool
) -> None:
    """The class is empty, so nothing comes behind the first letter."""
    wanted = grammar("regex", r"a[^\s\S]b")
    answers = run(engine, [ask("stuck", wanted), ask("free", None, 60)], overlap=overlap)
    end = answers.ends["stuck"]
    assert (end.finish_reason, end.refusal) == ("error", "invalid")
    assert (end.error or "").startswith("response_format: no token may follow")
    assert answers.ends["free"].finish_reason in ("length", "stop")


@pytest.mark.parametrize("overlap", [False, True])
def test_an_answer_goes_on_in_its_grammar_on_another_engine(engine: Engine, overlap: bool) -> None:
    names = list(SCHEMAS)[:6]
    whole = run(engine, [ask(name, schema_of(name)) for name in names])
    with engine_of(max_queued_requests=256) as other:
        resumed = [
            msgspec.structs.replace(
                ask(name, schema_of(name)),
                request_id=f"{name}/{cut}",
                generated_ids=whole.tokens[name][:cut],
            )
            for name in names
            for cut in {1, len(whole.tokens[name]) // 2, len(whole.tokens[name]) - 1}
        ]
        answers = run(other, resumed, overlap=overlap)
    for one in resumed:
        rest = whole.tokens[one.request_id.split("/")[0]][len(one.generated_ids) :]
        assert answers.ends[one.request_id].finish_reason == "stop"
        assert answers.tokens[one.request_id] == rest, one.request_id


def test_an_answer_that_does_not_follow_its_grammar_is_refused(engine: Engine) -> None:
    asked = msgspec.structs.replace(
        ask("other", grammar("regex", "[ab]{4}")), generated_ids=list(b"ax")
    )
    end = run(engine, [asked]).ends["other"]
    assert (end.finish_reason, end.refusal) == ("error", "invalid")
    assert end.error is not None
    assert end.error.startswith("response_format: the answer to go on from does not follow it")
