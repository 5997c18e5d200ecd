"""The task generator: lengths, answers that follow from the prompt, prompts that never drift."""

import hashlib
import random
import re

import pytest

from e2e.model.tasks import PRINTABLE, TASKS, as_chat, copy_dialogue, make_prompt

LENGTHS = (32, 33, 40, 64, 128, 256, 512, 1024)
# Regenerate by printing _digest(); weights and published figures hold for these prompts only.
GOLDEN_DIGEST = "0e1530acff3dae6f"


def _digest() -> str:
    pairs = [make_prompt(task, length, 7) for task in TASKS for length in LENGTHS]
    return hashlib.sha256(repr(pairs).encode()).hexdigest()[:16]


def _answer_by_hand(prompt: str) -> str:
    if prompt.startswith("copy: "):
        return prompt.removeprefix("copy: ").removesuffix("\n")
    records, question = prompt.removesuffix("\n").split("\n")
    values: dict[str, str] = dict(re.findall(r"([a-z]{2})=(\w+)", records))
    if "+" in question:
        told = "+".join(f"{key}={values[key]}" for key in question.split("+"))
        return f"{told}={sum(int(values[key]) for key in question.split('+'))}"
    return values[question]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("task", TASKS)
def test_prompt_has_the_asked_length_and_its_answer_follows_from_it(task: str, length: int) -> None:
    for seed in range(20):
        prompt, answer = make_prompt(task, length, seed)
        assert len(prompt.encode()) == length
        assert answer == _answer_by_hand(prompt)


def test_prompts_are_the_ones_the_published_figures_were_measured_on() -> None:
    assert _digest() == GOLDEN_DIGEST


@pytest.mark.parametrize("task", TASKS)
def test_seeds_give_different_prompts(task: str) -> None:
    assert len({make_prompt(task, 64, seed) for seed in range(200)}) == 200


@pytest.mark.parametrize("length", [512, 1024])
@pytest.mark.parametrize("distance", [1, 2])
def test_no_pair_occurs_twice_in_copied_text(length: int, distance: int) -> None:
    _, text = make_prompt("copy", length, 0)
    pairs = [text[at] + text[at + distance] for at in range(len(text) - distance)]
    assert len(set(pairs)) == len(pairs)


def test_copied_text_may_be_any_printable_line() -> None:
    dialogue = copy_dialogue(200, 1, random.Random(0), PRINTABLE)
    assert set(dialogue.exchanges[0].answer) - set(PRINTABLE) == set()
    assert " " in dialogue.exchanges[0].answer


@pytest.mark.parametrize(("task", "length"), [("copy", 7), ("lookup", 12), ("add", 14)])
def test_a_length_that_holds_no_question_is_refused(task: str, length: int) -> None:
    with pytest.raises(ValueError, match=r"bytes"):
        make_prompt(task, length, 0)


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'sort' is unknown; known are copy, lookup, add"):
        make_prompt("sort", 64, 0)


def test_chat_form_is_one_user_message_without_the_final_newline() -> None:
    assert as_chat("copy: abc\n") == [{"role": "user", "content": "copy: abc"}]
