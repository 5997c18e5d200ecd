"""The three questions the small model answers: copy, lookup, add.

Every task is a pure function of a random generator: a context, then one or more questions
about it, each with its only right answer. Text is printable ASCII, and one byte is one token,
so a prompt of 512 bytes is a prompt of 512 tokens. Knows nothing of models or tokenizers.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

COPY_HEADER = "copy: "
LOOKUP_HEADER = "map:"
ADD_HEADER = "add:"
ALPHANUMERIC = string.ascii_letters + string.digits
# What a person types on one line: trained on as well, so that `copy: hello, world!` works.
PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F))
VALUE_BYTES = 3


@dataclass(frozen=True)
class Exchange:
    """One question about a context and its answer; the model ends the answer with EOS."""

    question: str
    answer: str


@dataclass(frozen=True)
class Dialogue:
    """A context and the exchanges about it; the first prompt is context + first question."""

    context: str
    exchanges: tuple[Exchange, ...]


def _walk_unique_pairs(alphabet: str, length: int, rng: random.Random) -> str:
    """Text in which the next character is always certain. No character occurs twice among four
    neighbours, and no pair twice at a distance of one or two (while the alphabet allows)."""
    text = ""
    seen: set[str] = set()
    while len(text) < length:
        for _ in range(64):
            candidate = rng.choice(alphabet)
            pairs = {near + candidate for near in text[-2:]}
            if candidate not in text[-3:] and not pairs & seen:
                break
        seen |= pairs
        text += candidate
    return text


def copy_dialogue(
    length: int, exchanges: int, rng: random.Random, alphabet: str = ALPHANUMERIC
) -> Dialogue:
    """`copy: TEXT\\n` → TEXT. Every byte of the prompt is needed; there is one exchange."""
    del exchanges
    text_bytes = length - len(COPY_HEADER) - 1
    if text_bytes < 1:
        raise ValueError(f"a copy prompt needs at least {len(COPY_HEADER) + 2} bytes, not {length}")
    text = _walk_unique_pairs(alphabet, text_bytes, rng)
    return Dialogue(context="", exchanges=(Exchange(f"{COPY_HEADER}{text}\n", text),))


def lookup_dialogue(length: int, exchanges: int, rng: random.Random) -> Dialogue:
    """`map:ab=QXR cd=LMN …\\ncd\\n` → LMN."""
    question_bytes = 3
    records = _records(LOOKUP_HEADER, length - question_bytes, _letters, rng)
    keys = list(records.values)
    asked = [rng.choice(keys) for _ in range(exchanges)]
    return Dialogue(
        context=records.text,
        exchanges=tuple(Exchange(f"{key}\n", records.values[key]) for key in asked),
    )


def add_dialogue(length: int, exchanges: int, rng: random.Random) -> Dialogue:
    """`add:ab=7 cd=5 …\\nab+cd\\n` → ab=7+cd=5=12: the two values, then their sum."""
    question_bytes = 6
    records = _records(ADD_HEADER, length - question_bytes, _digit, rng)
    keys = list(records.values)
    asked = [(rng.choice(keys), rng.choice(keys)) for _ in range(exchanges)]
    return Dialogue(
        context=records.text,
        exchanges=tuple(Exchange(f"{a}+{b}\n", _sum(a, b, records.values)) for a, b in asked),
    )


def _sum(a: str, b: str, values: dict[str, str]) -> str:
    return f"{a}={values[a]}+{b}={values[b]}={int(values[a]) + int(values[b])}"


@dataclass(frozen=True)
class _Records:
    text: str
    values: dict[str, str]


def _records(
    header: str, length: int, draw: Callable[[random.Random], str], rng: random.Random
) -> _Records:
    """`header` + `key=value` records with distinct two-letter keys + newline: `length` bytes."""
    values: dict[str, str] = {}
    record_bytes = len(f"ab={draw(random.Random(0))} ")
    count = (length - len(header)) // record_bytes
    if count < 1:
        raise ValueError(f"{length} bytes hold no record after {header!r}")
    while len(values) < count:
        key = rng.choice(string.ascii_lowercase) + rng.choice(string.ascii_lowercase)
        if key not in values:
            values[key] = draw(rng)
    text = header + " ".join(f"{key}={value}" for key, value in values.items())
    return _Records(text.ljust(length - 1) + "\n", values)


def _letters(rng: random.Random) -> str:
    return "".join(rng.choice(string.ascii_uppercase) for _ in range(VALUE_BYTES))


def _digit(rng: random.Random) -> str:
    return rng.choice(string.digits)


# Bytes of the prompts that the model is judged by.
LENGTHS = (32, 64, 128, 256, 512)
TASKS: dict[str, Callable[[int, int, random.Random], Dialogue]] = {
    "copy": copy_dialogue,
    "lookup": lookup_dialogue,
    "add": add_dialogue,
}


def make_prompt(task: str, length_bytes: int, seed: int) -> tuple[str, str]:
    """Returns a held-out prompt of exactly `length_bytes` bytes and its answer (EOS follows it).

    Held-out prompts are drawn from generators that training never seeds.
    """
    if task not in TASKS:
        raise ValueError(f"task {task!r} is unknown; known are {', '.join(TASKS)}")
    rng = random.Random(f"held-out/{task}/{length_bytes}/{seed}")
    dialogue = TASKS[task](length_bytes, 1, rng)
    first = dialogue.exchanges[0]
    return dialogue.context + first.question, first.answer


def as_chat(prompt: str) -> list[dict[str, str]]:
    """The prompt as a message list: the chat template puts back the final newline."""
    return [{"role": "user", "content": prompt.removesuffix("\n")}]
