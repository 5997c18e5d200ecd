"""Reasoning is parted from the answer, however the text is cut into tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.server.reasoning.formats import FORMS, ReasoningForm, reasoning_format_of
from sluice_runtime.server.reasoning.parser import SeparatedText

DEEPSEEK, QWEN3, MISTRAL = FORMS
NOT_STARTED = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ content.split('</think>')[-1] }}<｜Assistant｜>", DEEPSEEK),
        ("{%- set enable_thinking %}<think>\n\n</think>", QWEN3),
        ("[SYSTEM_PROMPT] [THINK]", MISTRAL),
        ("{{ messages }}", None),
    ],
)
def test_families_are_known_by_their_template(template: str, form: ReasoningForm | None) -> None:
    assert reasoning_format_of(template) is form


def test_a_format_may_be_named_or_turned_off() -> None:
    assert reasoning_format_of("</think>", "deepseek-r1") is DEEPSEEK
    assert reasoning_format_of("", "mistral") is MISTRAL
    assert reasoning_format_of("</think>", "none") is None


NO_IDS: dict[str, int] = {}
"""Of tokens: the vocabulary has no markers."""


def parted(form: ReasoningForm, prompt: str, pieces: list[str]) -> SeparatedText:
    found = form.for_prompt(prompt, NO_IDS.get)
    assert found is not None
    parser = found.parser()
    parts = [*map(parser.push, pieces), parser.finish()]
    return SeparatedText("".join(p.reasoning for p in parts), "".join(p.text for p in parts))


def counted(form: ReasoningForm, prompt: str, pieces: list[str]) -> int:
    """Tokens of reasoning, where each character is one."""
    found = form.for_prompt(prompt, NO_IDS.get)
    assert found is not None
    parser, tokens, begin = found.parser(), 0, 0
    for piece in pieces:
        parser.push(piece)
        tokens += parser.count(range(begin, begin := begin + len(piece)))
    parser.finish()
    return tokens + parser.count(())


@pytest.mark.parametrize(
    ("form", "prompt", "answer", "wanted"),
    [
        (QWEN3, NOT_STARTED, "<think>\nHm,\n so\n</think>\n\nYes.\n", ("Hm,\n so", "Yes.\n")),
        (QWEN3, NOT_STARTED + "<think>\n", "Hm\n</think>\n\nYes", ("Hm", "Yes")),
        (QWEN3, NOT_STARTED, "<think>\n\n</think>\n\nYes", ("", "Yes")),
        (QWEN3, NOT_STARTED, " Yes <think>", ("", " Yes <think>")),
        (QWEN3, NOT_STARTED, "<thin ice", ("", "<thin ice")),
        (QWEN3, NOT_STARTED, "<think>a</thin", ("a</thin", "")),
        (QWEN3, NOT_STARTED, "<think>a  ", ("a", "")),
        (QWEN3, NOT_STARTED, "<think>a</think>b</think>c", ("a", "b</think>c")),
        (QWEN3, NOT_STARTED, "", ("", "")),
        (DEEPSEEK, "<｜Assistant｜>", "Hm</think>Yes", ("Hm", "Yes")),
        (DEEPSEEK, "<｜Assistant｜>", "<think>\nHm</think>Yes", ("Hm", "Yes")),
        (MISTRAL, "[/INST]", "[THINK]Hm[/THINK]Yes", ("Hm", "Yes")),
    ],
)
def test_what_is_reasoning(
    form: ReasoningForm, prompt: str, answer: str, wanted: tuple[str, str]
) -> None:
    assert parted(form, prompt, [answer]) == wanted


def test_a_prompt_that_ends_the_reasoning_leaves_none() -> None:
    for form in FORMS:
        assert form.for_prompt(f"{NOT_STARTED}{form.begin}\n\n{form.end}\n\n", NO_IDS.get) is None


def test_markers_that_are_special_tokens_are_decoded() -> None:
    found = MISTRAL.for_prompt("[/INST]", {"[THINK]": 0, "[/THINK]": 35}.get)
    assert found is not None
    assert found.shown_tokens == {0: "[THINK]", 35: "[/THINK]"}


TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "a", " ", "\n", "b c"])).map(
    "".join
)


@given(TEXTS, st.lists(st.integers(0, 40)), st.sampled_from(FORMS), st.booleans())
def test_any_cut_gives_the_same_parts(
    answer: str, cuts: list[int], form: ReasoningForm, opened: bool
) -> None:
    prompt = NOT_STARTED + (form.begin if opened else "")
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    pieces = [answer[a:b] for a, b in pairwise(places)]
    whole = parted(form, prompt, [answer])
    assert parted(form, prompt, pieces) == whole
    assert counted(form, prompt, pieces) == counted(form, prompt, [answer])
    dropped = len(answer) - len(whole.reasoning) - len(whole.text)
    assert dropped <= len(form.begin + form.end) + sum(map(str.isspace, answer))
