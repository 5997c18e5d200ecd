"""What reading calls costs: characters that are looked at or copied, in proportion to the text."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest
from sluice_runtime.server.tools import calls as calls_module
from sluice_runtime.server.tools import json_calls
from sluice_runtime.server.tools.calls import CallParser
from sluice_runtime.server.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
)
from sluice_runtime.server.tools.source import CallSource, Reading

from tests.pairwise import matrix

SCHEMAS = {
    "f": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}, "record": {}},
    }
}


class CountingSource(CallSource):
    """Counts the characters that its steps look at or copy."""

    characters: ClassVar[int] = 0

    def _count(self, text: str) -> str:
        CountingSource.characters += len(text)
        return text

    def add(self, text: str) -> None:
        super().add(text)
        self._count(self._text)

    def go_back(self, position: int) -> None:
        before = self._text
        super().go_back(position)
        if self._text is not before:
            self._count(self._text)

    def behind(self, characters: int) -> str:
        return self._count(super().behind(characters))

    def ahead(self, characters: int, at: int = 0) -> str:
        return self._count(super().ahead(characters, at))

    def find(self, pattern: re.Pattern[str]) -> tuple[int, str] | None:
        match = super().find(pattern)
        CountingSource.characters += self.available if match is None else match[0] + len(match[1])
        return match

    def rest(self) -> str:
        return self._count(super().rest())

    def peek(self) -> Reading[str]:
        return self._count((yield from super().peek()))


MARKS = {
    HERMES: "<tool_call>",
    LLAMA3: "<|python_tag|>",
    MISTRAL: "[TOOL_CALLS]",
    MISTRAL_NAMED: "[TOOL_CALLS]",
    QWEN3_CODER: "<tool_call>",
}
BEGINS = {
    HERMES: '<tool_call>{"name": "f", "arguments": ',
    LLAMA3: '{"name": "f", "parameters": ',
    MISTRAL: '[TOOL_CALLS][{"name": "f", "arguments": ',
    MISTRAL_NAMED: "[TOOL_CALLS]f[ARGS]",
    QWEN3_CODER: "<tool_call><function=f>",
}
SPACE = " " * 101  # more than stands between a mark and the call that it begins
TEXTS = {
    "marks in a string": ('%(begin)s{"cmd": "', "%(mark)s a "),
    "marks in a string, and no space": ('%(begin)s{"cmd": "', "%(mark)s"),
    "calls in a string": ('%(begin)s{"cmd": "', '%(begin)s{"cmd": "x '),
    "calls that are far from their mark": ("", '%(mark)s{space}%(begin)s{"-":"x '),
    "no calls behind calls": ("", "%(begin)s{}}{'-':'x "),
    "no calls": ("", "%(mark)s{'-':'x"),
    "no names": ("", '%(mark)s{space}{"arguments":{"a":"x'),
    "prose behind a mark": ("%(mark)s", "some prose, "),
    "marks": ("", "%(mark)s"),
    "marks with prose": ("", "%(mark)s a "),
    "lists": ("", "[1] {2} "),
    "objects": ("", '{"a": [1]} '),
    "open brackets": ("", "{["),
    "space": ("%(mark)s", " "),
    "space in arguments": ('%(begin)s"', " "),
    "quotation marks": ('%(begin)s{"cmd": "', '" '),
    "escapes": ('%(begin)s{"cmd": "', "\\n\\u00e9\\ud83d"),
    "separators": ('%(begin)s{"cmd": "', ", "),
    "tags without quotation marks": ('%(begin)s{"cmd": ', "<"),
    "JSON in a string": ('%(begin)s{"cmd": "', '{"a": "b'),
    "a long name": ('%(mark)s{"name": "', "n"),
    "a long key": ('%(begin)s{"', "k"),
    "arguments as text": ("", "{'name':'f','parameters':\"x"),
    "fences": ("", "```json\n{'x"),
    "ends left over": ("", '%(begin)s{"cmd": "x"}}", "n": <'),
    "comments": ("%(begin)s{", "/* a */ // b\n"),
}
BETWEEN_TAGS = {
    "a long function": ("<function=", "n"),
    "a long parameter": ("<function=f>see <parameter=", "n"),
    "a long parameter in a value": ("<function=f><parameter=cmd>see <parameter=", "n"),
    "parameters in a value": ("<function=f><parameter=cmd>see ", "<parameter="),
    "ends in a value": ("<function=f><parameter=cmd>\n", "</function> a "),
    "values without an end": ("", '<function=f><parameter=">x</function>'),
    "line ends": ("<function=f><parameter=cmd>\n", "\n"),
    "ends of values": ("<function=f>", "</parameter>"),
    "text between values": ("<function=f>", "a b "),
    "JSON": ("<function=f><parameter=record>", '{"a": '),
}


def spelled(form: ToolFormat, text: str) -> str:
    parts = {"{space}": SPACE, "%(mark)s": MARKS[form], "%(begin)s": BEGINS[form]}
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "CallSource", CountingSource)
    monkeypatch.setattr(json_calls, "CallSource", CountingSource)


def cost(form: ToolFormat, text: str, step: int, *, cut: bool) -> int:
    """Characters looked at for a text that comes in pieces of this size."""
    CountingSource.characters = 0
    parser = CallParser(form.read, SCHEMAS, lambda: "id")
    for at in range(0, len(text), step):
        parser.push(text[at : at + step])
    parser.finish(cut=cut)
    return CountingSource.characters


DELIVERIES = {"characters": (1, False), "whole": (1 << 20, False), "cut": (1 << 20, True)}
FORMS = {form.families: form for form in FORMATS}
MATRIX = matrix(FORMS, TEXTS, DELIVERIES, others=pytest.mark.full)
CODER = matrix([QWEN3_CODER.families], BETWEEN_TAGS, DELIVERIES, others=pytest.mark.full)


@pytest.mark.parametrize(("family", "text", "delivery"), MATRIX + CODER)
def test_a_text_of_twice_the_length_costs_twice_as_much(
    family: str, text: str, delivery: str
) -> None:
    form, (step, cut) = FORMS[family], DELIVERIES[delivery]
    begin, repeated = (spelled(form, part) for part in (TEXTS | BETWEEN_TAGS)[text])
    number = max(16, 600 // len(repeated))
    once = cost(form, begin + number * repeated, step, cut=cut)
    assert cost(form, begin + 2 * number * repeated, step, cut=cut) < 2.4 * once
