"""Random calls, whole, broken and cut, come out the same however they arrive."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.server.fields import json_within
from sluice_runtime.server.tools.formats import (
    ToolFormat,
)

from tests.examples import examples
from tests.runtime.server import call_fuzz
from tests.runtime.server.test_tool_arguments import EVERY, Read, read, sent


def check_stream(form: ToolFormat, text: str, draw: random.Random) -> Read:
    """What is read of a text, which does not depend on how it came; arguments are objects."""
    pieces, cut = call_fuzz.cuts(text, draw), draw.random() < 0.2
    whole = read(form, [text], call_fuzz.SCHEMAS, cut=cut)
    assert read(form, pieces, call_fuzz.SCHEMAS, cut=cut) == whole
    *_, passed = sent(form, pieces, call_fuzz.SCHEMAS)
    assert [*sent(form, [text], call_fuzz.SCHEMAS)] == [passed]
    for number, (_, arguments) in enumerate(whole[1], 1):
        if not cut or number < len(whole[1]):
            assert isinstance(json_within(arguments), dict)
    if not whole[1]:
        assert "".join(whole[0].split()) == "".join(text.split())
    return read(form, [text], call_fuzz.SCHEMAS)


@EVERY
@examples(60)
@given(seed=st.integers(0, 2**64))
def test_random_calls_are_read_exactly(form: ToolFormat, seed: int) -> None:
    draw = random.Random(seed)
    answer = call_fuzz.rendered(form, draw)
    text, calls = check_stream(form, answer.text, draw)
    assert (text, [(name, json.loads(found)) for name, found in calls]) == ("", answer.calls)


@EVERY
@examples(60)
@given(seed=st.integers(0, 2**64))
def test_random_calls_that_are_broken_have_objects_or_are_text(form: ToolFormat, seed: int) -> None:
    draw = random.Random(seed)
    check_stream(form, call_fuzz.mangled(call_fuzz.rendered(form, draw), draw), draw)


@EVERY
@examples(40)
@given(seed=st.integers(0, 2**64))
def test_no_value_has_another_one_s_text(form: ToolFormat, seed: int) -> None:
    draw = random.Random(seed)
    spelled, words = call_fuzz.without_closing(form, draw)
    _, calls = check_stream(form, spelled, draw)
    for _, arguments in calls:
        for key, text in json.loads(arguments).items():
            assert not any(word in str(text) for other, word in words.items() if other != key)
