"""What the grammar library takes, within limits, and what is refused with its own message."""

from __future__ import annotations

import threading
import time

import pytest
from llguidance import LLMatcher
from sluice_contract.log_lines import shown_json
from sluice_runtime.errors import GrammarError, GrammarUnavailableError
from sluice_runtime.grammar import constraint
from sluice_runtime.grammar.constraint import (
    one_of,
    refuse_unusable,
    start_deep_thread,
    with_deep_stack,
)
from sluice_runtime.wire.messages import GrammarKind

from tests.runtime.grammar.drawing import BYTES, accepts, matcher_of, schema_matcher

LONG_CHAIN = "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(4000))
LONG_CHAIN += 'a4000 ::= "x"'
REFUSED: list[tuple[GrammarKind, str]] = [
    ("regex", "(a"),
    ("regex", "[z-a]"),
    ("regex", "a{5,2}"),
    ("ebnf", "root ::= x"),
    ("ebnf", 'start ::= "a"'),
    ("ebnf", 'root ::= "a" ::= "b"'),
    ("ebnf", 'root ::= "a'),
    ("ebnf", 'root ::= "\\'),
    ("ebnf", 'root ::= "\\ud800"'),
    ("ebnf", 'root ::= "a"{3,1}'),
    ("ebnf", "root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
    ("json_schema", '{"$ref": "#/$defs/x"}'),
    ("json_schema", '{"type": "object", "properties": {"x": {"pattern": "(a"}}}'),
    ("lark", "start: %json {}} "),
]


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_a_refusal_is_one_short_line(kind: GrammarKind, text: str) -> None:
    with pytest.raises(GrammarError) as error:
        refuse_unusable(kind, text)
    message = str(error.value)
    assert "\n" not in message
    assert "<non-verbose/>" not in message
    assert 0 < len(message) < 600
    assert message.startswith(shown_json(text)) == (kind in ("regex", "ebnf"))


@pytest.mark.parametrize(
    ("pattern", "whole", "other"),
    [
        ("^ab$", "ab", "xab"), ("^a|b$", "b", "ab"), ("(a)(?:b)(?<c>d)", "abd", "ab"),
        ("a*?b+?c??d{1,2}?", "bd", "ad"), ("a{2}b{2,}c{2,5}", "aabbcc", "aabc"), ("a||b", "", "ab"),
        (r"\d\w\s\D\W\S", "1a a!x", "aa a!x"), (r"[^\W\d]", "a", "1"), (r"\d", "3", "٣"),
        (r"\x41\u0041\u{1F600}\n", "AA\U0001f600\n", "AA"), (r"\^\$", "^$", ""),
        ("é+[é-ü].", "éü\n", "é"), ("a/b", "a/b", "ab"), (r"a\/b", "a/b", r"a\/b"), ("", "", "a"),
        ("(?i)a", "A", "b"), (r"\p{L}", "é", "1"),
    ],
)  # fmt: skip
def test_an_answer_is_all_that_a_pattern_matches(pattern: str, whole: str, other: str) -> None:
    matcher = matcher_of("regex", pattern, BYTES)
    assert accepts(matcher, whole.encode())
    assert not accepts(matcher, other.encode())


@pytest.mark.parametrize(
    "pattern",
    [
        "a^b", r"a\b", r"a\B", "(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", r"(a)\1",
        r"(?<n>a)\k<n>", "(?>a)", r"\Z", r"\0", "a$b",
    ],
)  # fmt: skip
def test_what_a_regular_expression_may_not_hold_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        refuse_unusable("regex", pattern)


@pytest.mark.parametrize(
    ("ebnf", "texts", "others"),
    [
        ('root ::= "a" "b"?', ["a", "ab"], ["b", ""]),
        ('root ::= name "x"\nname ::= [a-z]+', ["abx", "xx"], ["x", "abc"]),
        ('root ::= ("abc" | [a-z]+) "."', ["abx.", "abc."], ["."]),
        ('root ::= "ab" | "a" root | "b"', ["aab", "aaab"], ["aa"]),
        ('root ::= "\\u00e9" "\\x41\\\\"', ["éA\\"], ["é"]),
        ('root ::= start\nstart ::= "/" r-1 # why\nr-1 ::= r_1\nr_1 ::= "\n"', ["/\n"], ["/"]),
        ('root ::= t ("+" t)*\nt ::= [0-9]+ | "(" root ")"', ["1+(2+3)", "12"], ["(1", "1+"]),
        ("root ::= [^a]{2,3}", ["é\n", "bbb"], ["b", "ab"]),
    ],
)
def test_an_answer_is_a_sentence_of_the_grammar(
    ebnf: str, texts: list[str], others: list[str]
) -> None:
    matcher = matcher_of("ebnf", ebnf, BYTES)
    assert all(accepts(matcher, text.encode()) for text in texts)
    assert not any(accepts(matcher, text.encode()) for text in others)


@pytest.mark.parametrize(
    "texts", [["yes", "yes please"], ["", "a"], ['a "b"\\\n', "\x01é\u2028"]], ids=str
)
def test_a_choice_is_one_of_its_texts(texts: list[str]) -> None:
    matcher = matcher_of("lark", one_of(texts), BYTES)
    assert all(accepts(matcher, text.encode()) for text in texts)
    assert not accepts(matcher, "".join(texts).encode() + b"z")


def test_white_space_is_bounded_and_only_between_words() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {}}}}
    matcher = schema_matcher(schema)
    for text in ('{%s"a":[1]}', '{"a"%s:[1]}', '{"a":%s[1]}', '{"a":[1%s]}', '{"a":[1]%s}'):
        assert accepts(matcher, (text % (" " * 32)).encode())
        assert not accepts(matcher, (text % (" " * 33)).encode())
    assert not accepts(matcher, b' {"a":[1]}')
    assert not accepts(matcher, b'{"a":[1]} ')


def test_deeply_nested_grammars_do_not_end_the_process() -> None:
    """The library's compiler is recursive; on an ordinary stack this ends the process."""
    refuse_unusable("ebnf", LONG_CHAIN)


def test_a_call_that_fails_is_the_librarys_fault(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> str:
        raise SystemExit

    with pytest.raises(GrammarUnavailableError, match="the grammar library failed with it"):
        with_deep_stack(fails)
    assert caplog.messages == ["the grammar library failed"]


def test_a_panic_is_the_librarys_fault_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panics:
        grammar_from_regex = LLMatcher.grammar_from_regex

        @staticmethod
        def validate_grammar(*_: object, **__: object) -> str:
            return "panic: index too large\n   0: some_function\n"

    monkeypatch.setattr(constraint, "LLMatcher", Panics)
    with pytest.raises(GrammarUnavailableError, match="the grammar library failed with it"):
        refuse_unusable("regex", "a")
    assert "panic: index too large" in caplog.text


@pytest.mark.parametrize("text", ["(a{0,60}){0,60}b", "(" * 200 + "a" + ")" * 200, ".*a" * 2000])
def test_a_pattern_is_checked_at_once(text: str) -> None:
    began = time.thread_time()
    refuse_unusable("regex", text)
    assert time.thread_time() - began < 1


def test_deep_threads_started_at_once_leave_the_size_of_stacks_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size is the process's."""
    before = threading.stack_size()
    inside, start = threading.Event(), threading.Thread.start
    others: list[threading.Thread] = []

    def slow_start(self: threading.Thread) -> None:
        if self.name == "slow":
            other = threading.Thread(target=lambda: start_deep_thread(lambda: None, "quick"))
            others.append(other)
            start(other)
            inside.wait(0.05)
        elif self.name == "quick":
            inside.wait(0.2)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    start_deep_thread(lambda: None, "slow")
    for other in others:
        other.join()
    assert threading.stack_size() == before
