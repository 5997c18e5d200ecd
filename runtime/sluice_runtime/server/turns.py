"""Rearranges conversations for chat templates that do not take everything the API accepts.

Turns are messages as chat templates read them. Nothing is lost: a text may move to another turn,
and a call or its result may become text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Final

from sluice_runtime.server.content import GAP
from sluice_runtime.server.tools.formats import nine_characters

Turn = dict[str, Any]

_SYSTEM: Final = ("system", "developer")
_SHORT_ID: Final = 9


def joined_turns(turns: Iterable[Turn], between_answers: str = GAP) -> list[Turn]:
    """Joins consecutive turns of one role, and puts the system turns at the start into one.

    A later system turn becomes part of the turn before it, so that the prompt of a longer
    conversation still begins with the prompt of the shorter one. Nothing is put between a call and
    its result. `between_answers`: separates the assistant's texts."""
    rest = list(turns)
    leading: list[Turn] = []
    while rest and rest[0]["role"] in _SYSTEM:
        leading.append(rest.pop(0))
    joined: list[Turn] = []
    if text := _texts([turn["content"] for turn in leading]):
        joined.append({**leading[0], "content": text})
    waiting: list[str] = []
    for turn in rest:
        if turn["role"] in _SYSTEM:
            waiting.append(turn["content"])
            if joined and joined[-1].get("tool_calls"):
                continue  # added after the calls' results
        elif turn["role"] == "assistant":
            _add_text(joined, waiting)
        if turn["role"] not in _SYSTEM:
            _add_turn(joined, turn, between_answers)
        if turn["role"] != "tool":
            _add_text(joined, waiting)
    _add_text(joined, waiting)
    return joined


def _add_text(turns: list[Turn], waiting: list[str]) -> None:
    """Adds texts to the last turn if it is a user's or a tool's, else as a new user's turn."""
    text = _texts(waiting)
    waiting.clear()
    if text and turns and turns[-1]["role"] == "tool":
        turns[-1]["content"] = _texts([turns[-1]["content"], text])
    elif text:
        _add_turn(turns, {"role": "user", "content": text}, GAP)


def _add_turn(turns: list[Turn], turn: Turn, between_answers: str) -> None:
    role = turn["role"]
    if role == "tool" or not turns or turns[-1]["role"] != role:
        turns.append(dict(turn))
        return
    last, gap = turns[-1], between_answers if role == "assistant" else GAP
    last["content"] = _texts([last["content"], turn["content"]], gap)
    if "reasoning_content" in turn:
        last["reasoning_content"] = last.get("reasoning_content", "") + turn["reasoning_content"]
    if "tool_calls" in turn:
        last["tool_calls"] = last.get("tool_calls", []) + turn["tool_calls"]


def _texts(texts: Iterable[str], gap: str = GAP) -> str:
    return gap.join(filter(None, texts))


def _opened(turns: Sequence[Turn]) -> list[Turn]:
    """Puts an empty user's turn first if the conversation begins with another role."""
    joined = joined_turns(turns)
    start = 1 if joined and joined[0]["role"] in _SYSTEM else 0
    if start < len(joined) and joined[start]["role"] != "user":
        joined.insert(start, {"role": "user", "content": ""})
    return joined


def _with_short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Replaces calls' ids by ones that Mistral's templates accept: nine letters and digits."""

    def short(call_id: str) -> str:
        fits = len(call_id) == _SHORT_ID and call_id.isascii() and call_id.isalnum()
        return call_id if fits else nine_characters(call_id)

    renamed = []
    for turn in turns:
        turn = dict(turn)
        if "tool_call_id" in turn:
            turn["tool_call_id"] = short(turn["tool_call_id"])
        if "tool_calls" in turn:
            turn["tool_calls"] = [{**call, "id": short(call["id"])} for call in turn["tool_calls"]]
        renamed.append(turn)
    return renamed


def _with_divided_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Splits turns with several calls into one turn for each call, followed by its results."""
    divided: list[Turn] = []
    at = 0
    while at < len(turns):
        turn, at = turns[at], at + 1
        if len(turn.get("tool_calls", ())) < 2:
            divided.append(turn)
            continue
        results = list(takewhile(lambda turn: turn["role"] == "tool", islice(turns, at, None)))
        at += len(results)
        divided += _one_call_a_turn(turn, results)
    return divided


def _one_call_a_turn(turn: Turn, results: Sequence[Turn]) -> Iterator[Turn]:
    by_id: dict[str, list[Turn]] = {}
    for result in results:
        by_id.setdefault(result["tool_call_id"], []).append(result)
    to_come = Counter(call["id"] for call in turn["tool_calls"])
    for call in turn["tool_calls"]:
        yield {**turn, "tool_calls": [call]}
        to_come[call["id"]] -= 1
        own = by_id.get(call["id"], [])
        taken = 1 if to_come[call["id"]] else len(own)  # calls with equal ids have one each
        yield from own[:taken]
        del own[:taken]
        turn = {"role": "assistant", "content": ""}
    for others in by_id.values():
        yield from others


def _with_text_before_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Splits a turn with text and calls into two: the text, then the calls."""
    parted: list[Turn] = []
    for turn in turns:
        if turn.get("tool_calls") and turn["content"]:
            parted += [
                {key: value for key, value in turn.items() if key != "tool_calls"},
                {"role": "assistant", "content": "", "tool_calls": turn["tool_calls"]},
            ]
        else:
            parted.append(turn)
    return parted


def _with_text_in_results(turns: Sequence[Turn]) -> list[Turn]:
    """Moves a user's text that directly follows a call's result into the result."""
    joined: list[Turn] = []
    for turn in turns:
        if turn["role"] == "user" and joined and joined[-1]["role"] == "tool":
            joined[-1] = {**joined[-1], "content": _texts([joined[-1]["content"], turn["content"]])}
        else:
            joined.append(turn)
    return joined


def _with_tools_as_text(turns: Sequence[Turn]) -> list[Turn]:
    """Turns calls into text of the assistant and results into text of the user, in Hermes'
    format."""
    spoken: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool":
            text = f"<tool_response>\n{turn['content']}\n</tool_response>"
            spoken.append({"role": "user", "content": text})
        elif turn.get("tool_calls"):
            texts = [turn["content"], *(_call_text(call) for call in turn["tool_calls"])]
            rest = {key: value for key, value in turn.items() if key != "tool_calls"}
            spoken.append({**rest, "content": _texts(texts, "\n")})
        else:
            spoken.append(turn)
    return _opened(spoken)


def _call_text(call: Mapping[str, Any]) -> str:
    text = json.dumps(call["function"], ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """Moves the system turn's text to the beginning of the user's first turn."""
    if not turns or turns[0]["role"] not in _SYSTEM:
        return list(turns)
    return joined_turns([{**turns[0], "role": "user"}, *turns[1:]])


Step = Callable[[Sequence[Turn]], list[Turn]]

_JOINED: Final[tuple[str, Step]] = "turns-joined", _opened
_IDS: Final[tuple[str, Step]] = "ids-shortened", _with_short_ids
_DIVIDED: Final[tuple[str, Step]] = "calls-divided", _with_divided_calls
_SPOKEN: Final[tuple[str, Step]] = "text-before-calls", _with_text_before_calls
_RESULTS: Final[tuple[str, Step]] = "text-in-results", _with_text_in_results
TOOLS_AS_TEXT: Final = "tools-as-text"
SYSTEM_IN_USER: Final = "system-in-user"
_TEXT: Final[tuple[str, Step]] = TOOLS_AS_TEXT, _with_tools_as_text
_NO_SYSTEM: Final[tuple[str, Step]] = SYSTEM_IN_USER, _without_system

_NATIVE: Final = (
    (_JOINED,),
    (_JOINED, _IDS),
    (_JOINED, _IDS, _DIVIDED),
    (_JOINED, _IDS, _DIVIDED, _SPOKEN),
    (_JOINED, _IDS, _RESULTS),
    (_JOINED, _IDS, _DIVIDED, _RESULTS),
)
_MENDS: Final = (
    *_NATIVE,
    *((*steps, _NO_SYSTEM) for steps in _NATIVE),
    (_JOINED, _TEXT),
    (_JOINED, _TEXT, _NO_SYSTEM),
)
"""Combinations of steps to try, from the one that changes least to the one that changes most."""


def mended(turns: Sequence[Turn]) -> Iterable[tuple[list[Turn], list[str]]]:
    """The variants of a conversation to try, each once, with the names of the steps that changed
    it."""
    known = [list(turns)]
    for steps in _MENDS:
        changed, names = list(turns), list[str]()
        for name, step in steps:
            before, changed = changed, step(changed)
            names += [] if changed == before else [name]
        if changed not in known:
            known.append(changed)
            yield changed, names
