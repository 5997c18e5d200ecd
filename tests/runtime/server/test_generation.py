"""Replaying a choice's ids: what was sent before and what comes after are the whole answer.

Over all formats of tool calls, cut anywhere: in a character, a stop string, a call.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.model.tokenizer import ByteTokenizer
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.generation import ChoiceReader, EarlierTokens, ResumableChoice, replay
from sluice_runtime.server.protocol import StreamOptions
from sluice_runtime.server.reasoning.formats import reasoning_format_of
from sluice_runtime.server.response_writers import ChatShape, ChunkWriter, Envelope, Usage
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.formats import (
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
)
from sluice_runtime.server.tools.plan import CallReading
from sluice_runtime.wire.messages import FinishReason, Sampling, TokenDelta, TokenLogprob

from tests.examples import examples

EOS = 258
TOKENIZER = ByteTokenizer()
TEXTS = TokenTexts(TOKENIZER)
SCHEMAS = {"f": {"type": "object", "properties": {"x": {"type": "string"}}}}
PARTS = [
    *("Hello ", "€", "🙂", "\n", " ", "END", "EN", "f", "{", "}", '"'),
    '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>',
    '<tool_call>{"name": "f", "argum',
    "<tool_call><function=f><parameter=x>\n1é\n</parameter></function></tool_call>",
    "<function=f><parameter=x>",
    '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "f", "arguments": {}}]',
    '[TOOL_CALLS]f[ARGS]{"x": "é"}',
    '{"name": "f", "parameters": {"x": "é"}}; ',
    '<|python_tag|>{"name": "f", "parameters": {}}',
    "<think>",
    "</think>",
]
THINKING = reasoning_format_of("", "qwen3")
assert THINKING is not None
NO_IDS: dict[str, int] = {}
REASONING = [
    None,
    *(THINKING.for_prompt(prompt, NO_IDS.get) for prompt in ("", "<think>")),
]
FORMATS = [None, HERMES, QWEN3_CODER, MISTRAL, MISTRAL_NAMED, LLAMA3]

Step = tuple[tuple[int, ...], FinishReason | None]


def reader_of(form: ToolFormat | None, fields: dict[str, Any], tokens: int) -> ChoiceReader:
    reading = CallReading(form, SCHEMAS) if form else None
    plan = ChoicePlan(
        0, [1, 2], tokens, Sampling(), [EOS], False, logprobs=1, reading=reading, **fields
    )
    return ChoiceReader(plan, TOKENIZER, TEXTS, "chatcmpl-1/0")


def scores_of(ids: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, -token / 7, 1, [(token, -token / 7)]) for token in ids)


class Sent:
    """A stream as the client has it, joined."""

    def __init__(self, begun: ResumableChoice | None = None) -> None:
        options = StreamOptions(include_usage=True)
        envelope = Envelope("chatcmpl-1", 1, "m")
        self.chunks = ChunkWriter(ChatShape(), envelope, Usage([2], 1), options)
        self.text, self.reasoning, self.roles, self.reasons = "", "", 0, []  # type: ignore[var-annotated]
        self.calls: dict[int, dict[str, Any]] = {}
        self.scores: list[Any] = []
        self.counted = 0
        """Chunks that a benchmark counts as tokens."""
        self.ids: list[int] = []
        if begun is not None:
            self.chunks.skip_sent(begun)
            for piece in begun.unsent:
                self.take(piece)

    def take(self, piece: Any) -> None:
        self.ids += piece.drawn_ids
        chunk = self.chunks.chunk(piece) or []
        for event in chunk if isinstance(chunk, list) else [chunk]:
            (choice,) = msgspec.json.decode(msgspec.json.encode(event))["choices"]
            self._join(choice)

    def _join(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        self.roles += "role" in delta
        assert delta.get("role") is None or not delta["content"], "the role is by itself"
        self.counted += "role" not in delta and "content" in delta
        self.text += delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", ()):
            function = part["function"]
            known = self.calls.setdefault(part["index"], {"arguments": ""})
            known["arguments"] += function["arguments"]
            if "id" in part:
                assert "id" not in known, "told twice"
                known |= {"id": part["id"], "name": function["name"]}
        self.scores += (choice["logprobs"] or {}).get("content", [])
        if choice["finish_reason"]:
            self.reasons.append(choice["finish_reason"])

    def usage(self) -> Any:
        last = self.chunks.final_chunk()
        assert last is not None
        return last["usage"]


def stream(sent: Sent, reader: ChoiceReader, steps: list[Step], cached: int) -> bool:
    """Whether it has ended."""
    for place, (ids, reason) in enumerate(steps):
        first = cached if not place else 0
        delta = TokenDelta("r", ids, reason, cached_tokens=first, logprobs=scores_of(ids))
        piece = reader.push(delta)
        sent.take(piece)
        if piece.finish_reason is not None:
            return True
    return False


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name if form else "text")
@examples(40)
@given(data=st.data())
def test_before_and_after_are_the_whole(form: ToolFormat | None, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5)))
    ends = data.draw(st.booleans())
    tokens = [*text.encode(), *([EOS] if ends else [])]
    fields = {
        "stops": data.draw(st.sampled_from([[], ["END"], ["END", "🙂"]])),
        "keeps_stop": data.draw(st.booleans()),
        "min_tokens": data.draw(st.sampled_from([0, 8])),
        "reasoning": data.draw(st.sampled_from(REASONING)),
    }
    borders = sorted(data.draw(st.sets(st.integers(1, len(tokens)), max_size=9)) - {len(tokens)})
    spans = list(pairwise([0, *borders, len(tokens)]))
    reason: FinishReason = "stop" if ends else "length"
    steps: list[Step] = [
        (tuple(tokens[a:b]), reason if b == len(tokens) else None) for a, b in spans
    ]
    whole = Sent()
    assert stream(whole, reader_of(form, fields, len(tokens)), steps, 1)
    if form is None and fields["reasoning"] is None and not fields["stops"]:
        assert whole.counted == len(steps)
    for cut in range(1, len(steps) + 1):
        before = Sent()
        finished = stream(before, reader_of(form, fields, len(tokens)), steps[:cut], 1)
        ids = tuple(before.ids)
        drawn = EarlierTokens(ids, scores_of(ids), 1, finished=finished)
        begun = replay(reader_of(form, fields, len(tokens)), drawn)
        assert begun is not None
        after = Sent(begun)
        assert finished == begun.ended
        if not finished:
            assert stream(after, begun.reader, steps[cut:], 0)
        check_joined(before, after, whole)
        if finished:
            return


def check_joined(before: Sent, after: Sent, whole: Sent) -> None:
    assert before.text + after.text == whole.text
    assert before.reasoning + after.reasoning == whole.reasoning
    assert before.roles + after.roles == whole.roles == 1
    assert before.reasons + after.reasons == whole.reasons
    assert before.scores + after.scores == whole.scores
    assert before.ids + after.ids == whole.ids
    assert after.usage() == whole.usage()
    calls = {place: dict(call) for place, call in before.calls.items()}
    for place, call in after.calls.items():
        known = calls.setdefault(place, {"arguments": ""})
        known["arguments"] += call["arguments"]
        assert not ("id" in call and "id" in known)
        known |= {key: value for key, value in call.items() if key != "arguments"}
    assert calls == whole.calls
