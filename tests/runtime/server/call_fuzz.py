"""Random calls in every format, written to the letter or not, for tests of what is read of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_runtime.server.tools.formats import (
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
)

_STRINGS: Final = ("a", "b", "c")
SCHEMAS: Final[dict[str, Any]] = {
    name: {
        "type": "object",
        "properties": {
            **{key: {"type": "string"} for key in _STRINGS},
            "n": {"type": "integer"},
            "flag": {"type": ["boolean", "null"]},
            "items": {"type": "array"},
            "record": {"type": "object"},
        },
    }
    for name in ("f", "get_it", "x.y-z")
}
_WORDS: Final = (
    *(
        "word",
        " ",
        ", ",
        "\n",
        "\t",
        "\\",
        "\\n",
        '"',
        "'",
        "`",
        "/",
        "//",
        "#",
        ":",
        ";",
        "=",
        "-",
    ),
    *("{", "}", "[", "]", "(", ")", "<", ">", "é", "🙂", "\u2028", "\x00", "\x1f", "\x7f", "null"),
    *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|python_tag|>", "```", "```json\n", '{"name": "f"', "<parameter=", "</param", "\\u00e9"),
)
_JUNK: Final = (
    *_WORDS,
    *(
        '"arguments": ',
        '"parameters": {',
        "NaN",
        "True",
        "</parameter>",
        "<parameter=a>",
        "\\ud83d",
    ),
    *('{"name": "f", "arguments": {', "<parameter=zz>\n", "/*", "*/", "  \n ", "1e5", "{}", '""'),
)


@dataclass(frozen=True)
class Rendered:
    """An answer in pieces, and what is in it."""

    pieces: list[str]
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def rendered(form: ToolFormat, draw: random.Random) -> Rendered:
    """An answer with calls, as the format has it."""
    calls = [
        (draw.choice(list(SCHEMAS)), _arguments(form, draw)) for _ in range(draw.randint(1, 3))
    ]
    pieces: list[str] = []
    for number, call in enumerate(calls):
        pieces += _BETWEEN[form][bool(number)]
        pieces += _xml(*call) if form is QWEN3_CODER else _json(form, draw, *call)
    return Rendered([*pieces, *_BETWEEN[form][2]], calls)


_BETWEEN: Final[dict[ToolFormat, tuple[list[str], list[str], list[str]]]] = {
    HERMES: ([], ["\n"], []),
    LLAMA3: ([], ["; "], []),
    MISTRAL: (["[TOOL_CALLS]", "["], [", "], ["]"]),
    MISTRAL_NAMED: ([], [], []),
    QWEN3_CODER: ([], ["\n"], []),
}


def _arguments(form: ToolFormat, draw: random.Random) -> dict[str, Any]:
    values: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(_STRINGS, lambda: _string(form, draw)),
        "n": lambda: draw.randint(-5, 10**9),
        "flag": lambda: draw.choice([True, False, None]),
        "items": lambda: [_string(form, draw) for _ in range(draw.randint(0, 2))],
        "record": lambda: {_string(form, draw): [draw.random(), {}, _string(form, draw)]},
    }
    keys = draw.sample(list(values), draw.randint(0, 4))
    return {key: values[key]() for key in keys}


def _string(form: ToolFormat, draw: random.Random) -> str:
    """Text; between tags without what ends a value there."""
    text = "".join(draw.choice(_WORDS) for _ in range(draw.randint(0, 5)))
    if form is QWEN3_CODER:
        text = re.sub(r"</parameter>|<parameter=[^<>\n]*>", "", text)
    return text


def _xml(name: str, arguments: dict[str, Any]) -> list[str]:
    pieces = ["<tool_call>", "\n", "<function=", name, ">", "\n"]
    for key, value in arguments.items():
        spelled = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        pieces += ["<parameter=", key, ">", "\n", spelled, "\n", "</parameter>", "\n"]
    return [*pieces, "</function>", "\n", "</tool_call>"]


def _json(form: ToolFormat, draw: random.Random, name: str, arguments: dict[str, Any]) -> list[str]:
    spelled = json.dumps(arguments, ensure_ascii=draw.random() < 0.3)
    pieces = re.findall(r'\\.|[{}\[\]",:]|[^\\{}\[\]",:]+', spelled)
    if form is MISTRAL_NAMED:
        return ["[TOOL_CALLS]", name, "[ARGS]", *pieces]
    key = "parameters" if form is LLAMA3 else "arguments"
    call = ["{", '"', "name", '"', ": ", f'"{name}"', ", ", f'"{key}"', ": ", *pieces, "}"]
    return ["<tool_call>", "\n", *call, "\n", "</tool_call>"] if form is HERMES else call


def mangled(answer: Rendered, draw: random.Random) -> str:
    """The answer with some pieces left out, put in, doubled, replaced or swapped."""
    pieces = list(answer.pieces)
    for _ in range(draw.choice([1, 1, 2, 3, 6])):
        at = draw.randrange(len(pieces) + 1)
        action = draw.randrange(6)
        if action == 0 or at == len(pieces):
            pieces.insert(at, draw.choice(_JUNK))
        elif action == 1:
            del pieces[at]
        elif action == 2:
            pieces.insert(at, pieces[at])
        elif action == 3:
            pieces[at] = draw.choice([*_JUNK, chr(draw.randrange(0x20))])
        elif action == 4:
            other = draw.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = pieces[at].replace('"', "'") if '"' in pieces[at] else pieces[at][:-1]
        pieces = pieces or [""]
    text = "".join(pieces)
    return text[: draw.randrange(len(text) + 1)] if draw.random() < 0.15 else text


def without_closing(form: ToolFormat, draw: random.Random) -> tuple[str, dict[str, str]]:
    """A call of three strings with one closing mark left out, and the strings' words."""
    words = {key: f"{key}{draw.randrange(10**6)}" for key in draw.sample(_STRINGS, 3)}
    answer = _xml("f", words) if form is QWEN3_CODER else _json(form, draw, "f", dict(words))
    pieces = [*_BETWEEN[form][0], *answer, *_BETWEEN[form][2]]
    begin = next(at for at, piece in enumerate(pieces) if any(key in piece for key in words))
    closing = [
        at
        for at, piece in enumerate(pieces)
        if at > begin and piece in ('"', "}", "]", ", ", ",", "</parameter>", "</function>", "\n")
    ]
    del pieces[draw.choice(closing)]
    return "".join(pieces), words


def cuts(text: str, draw: random.Random) -> list[str]:
    """The text in random pieces."""
    places = sorted(draw.randrange(len(text) + 1) for _ in range(draw.choice([1, 4, 20])))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
