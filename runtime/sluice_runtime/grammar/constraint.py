"""Checks and compiles requests' grammars with the grammar library, within limits. Imports no torch.

The API process checks and the engine compiles, both with `LIMITS`: the library counts its steps and
stops by itself, so no separate process to kill is needed.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import GrammarError, GrammarUnavailableError
from sluice_runtime.grammar.ebnf import lark_of
from sluice_runtime.grammar.json_schema import subschemas
from sluice_runtime.grammar.schema_keywords import at, target_of
from sluice_runtime.wire.messages import GrammarKind

LIMITS: Final = LLParserLimits(
    step_max_items=30_000,
    max_lexer_states=10_000,
    initial_lexer_fuel=100_000,
    verbose_errors=False,
)
"""Limits below the library's own. With them a mask of an ambiguous grammar takes up to 0.13 s, and
a matcher up to `sizing.plan.MATCHER_BYTES`. Ordinary grammars with 150,000 tokens use up to 15,000
items and fewer than 500 states; a string of bounded length uses 5 or 6 states for each byte of an
answer. The lexer takes up to half a unit of fuel for each of 65,536 characters, and 14,000 units
for a pattern with `\\p{L}`."""
MAX_CHECKED_CHARACTERS: Final = 1_000_000
MAX_CHECK_SECONDS: Final = 0.15
"""Most processor time to search one request's schemas for what the library does not accept;
`MAX_CHECKED_CHARACTERS` is the other limit."""
_CHECK_CHARACTERS: Final = 1_000
"""Fixed cost of a check in characters, besides the schema's length."""
_MAX_WHITESPACE: Final = 32
"""Most white space between two JSON tokens: enough to indent. Without a limit a weak model may
write nothing else."""
_GUIDANCE: Final = {"whitespace_pattern": rf"[ \n\r\t]{{1,{_MAX_WHITESPACE}}}"}
_STACK_BYTES: Final = 256 << 20
"""Stack size for the library's recursive compiler; 65,536 characters nest less than this. Untouched
pages cost nothing."""
_STACK_SIZE: Final = threading.Lock()
"""Lock around the process's stack size, which several threads set and restore."""
_MAX_SHOWN: Final = 300
LIBRARY_FAILED: Final = "the grammar library failed with it"
_WHERE: Final = re.compile(
    r"^at \d+\(\d+\): |failed to compile JSON schema: |invalid regex .* \(in regex\): "
    r"|; \w+ in regex .*$"
)
"""Parts of the library's messages about its own language, which the client has not written."""
_UNSATISFIABLE: Final = "Unsatisfiable"
"""Part of the library's message about a schema that no value fits."""
_ResultT = TypeVar("_ResultT")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledGrammar:
    """Compiled grammar of one request."""

    matcher: LLMatcher
    """Matcher at the grammar's beginning."""
    compile: Callable[[], LLMatcher]
    """Function that makes another matcher with no shared state. Call it in a thread with a large
    stack."""


def json_rule(schema: Any) -> str:
    """A JSON schema (`usable_schema`) as part of a Lark rule."""
    if isinstance(schema, bool):
        schema = {} if schema else {"anyOf": []}
    return "%json " + json.dumps(schema | {"x-guidance": _GUIDANCE})


def one_of(texts: list[str]) -> str:
    """A grammar in Lark that accepts exactly these texts."""
    return (
        f"start: TEXT\nTEXT: {' | '.join(json.dumps(text, ensure_ascii=False) for text in texts)}"
    )


_KINDS: Final[Mapping[GrammarKind, Callable[[str], str]]] = {
    "json_schema": lambda text: f"start: {json_rule(json.loads(text))}",
    "regex": lambda text: str(LLMatcher.grammar_from_regex("(?s)" + regex_to_lark(text, "dws"))),
    "ebnf": lark_of,
    "lark": str,
}


def _written(kind: GrammarKind, text: str) -> str:
    """Converts the grammar to the library's language.

    Raises:
        GrammarError: the text is not a valid grammar of its kind.
    """
    try:
        return _KINDS[kind](text)
    except GrammarError as error:
        raise GrammarError(f"{shown_json(text)}: {error}") from None


def invalid_grammar(grammar: str) -> str:
    """Explains why the library does not accept a grammar in Lark within `LIMITS`; "": it does.

    Raises:
        GrammarUnavailableError: the library failed with it.
    """
    return with_deep_stack(lambda: _invalid(grammar))


def refuse_unusable(kind: GrammarKind, text: str) -> None:
    """Refuses grammars that the library does not accept within `LIMITS`.

    Raises:
        GrammarError: the grammar is refused; for a schema the message names the place.
        GrammarUnavailableError: the library failed with it.
    """
    grammar = _written(kind, text)
    if not (reason := invalid_grammar(grammar)):
        return
    if kind == "json_schema":
        raise GrammarError(refusal_place(json.loads(text), reason))
    raise GrammarError(f"{shown_json(text)}: {reason}" if kind in ("regex", "ebnf") else reason)


def refusal_place(schema: Any, reason: str) -> str:
    """Place in a schema that the library does not accept, and the reason."""

    def search() -> tuple[str, str]:
        budget = CheckBudget()
        invalid = partial(budget.invalid, schema)
        try:
            for place, _, why in invalid_patterns(schema, budget):
                return at(place, "pattern"), why
            place, part, why = innermost_invalid(schema, invalid, reason)
            # No single keyword is to blame for a schema that no value fits.
            key = None if _UNSATISFIABLE in why else culprit(part, invalid)
        except ChecksSpentError:
            return "", reason
        return (place if key is None else at(place, key)), why

    place, why = with_deep_stack(search)
    return f"{place}: {why}" if place else why


def compiled(tokenizer: LLTokenizer, kind: GrammarKind, text: str) -> CompiledGrammar:
    """Compiles a grammar; call it in a thread with a large stack.

    Raises:
        GrammarError: the library does not accept the grammar within `LIMITS`.
        RuntimeError: the library failed with it.
    """
    compile_ = partial(LLMatcher, tokenizer, _written(kind, text), log_level=0, limits=LIMITS)
    matcher = compile_()
    if matcher.is_error():
        raise GrammarError(_refusal(matcher.get_error()))
    return CompiledGrammar(matcher, compile_)


def first_line(message: str) -> str:
    """The library's message on one line, cut short."""
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines()]
    message = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")
    return _WHERE.sub("", message.removeprefix("error:").strip())[:_MAX_SHOWN]


def _refusal(message: str) -> str:
    """Reason why the library refuses a grammar, for the client. Raises RuntimeError if the library
    itself failed."""
    line = first_line(message)
    if line.startswith("panic"):
        raise RuntimeError(line)
    return line


def with_deep_stack(call: Callable[[], _ResultT]) -> _ResultT:
    """Calls `call` in a thread with a large stack, and waits for the result. If the call fails,
    writes a line to the log and raises GrammarUnavailableError."""
    results: list[_ResultT] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException:  # also what the library raises for a fault of its own
            _log.exception("the grammar library failed")

    try:
        start_deep_thread(run, "grammar-check").join()
    except RuntimeError:
        _log.exception("no thread can be started for a grammar")
    if not results:
        raise GrammarUnavailableError(LIBRARY_FAILED)
    return results[0]


def start_deep_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts a thread with a large stack."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


class ChecksSpentError(Exception):
    """The request's budget of checks is used up."""


class CheckBudget:
    """Budget of the checks of one request. The library does not report the cost of a check, so time
    counts, too. `clock`: that of the checking thread, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._characters = MAX_CHECKED_CHARACTERS
        self._seconds = MAX_CHECK_SECONDS
        self._clock = clock
        self._reasons: dict[str, str] = {}
        """Reasons by grammar: a repeated check costs a tenth of its characters, and no time."""

    def invalid(self, root: Any, part: Any) -> str:
        """Explains why the library does not accept a part of a schema (`usable_schema`) by itself;
        "": it does. Call it in a thread with a large stack.

        Raises:
            ChecksSpentError: the budget is used up, so the result is unknown.
        """
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return self._check(f"start: {json_rule(definitions | part)}")

    def invalid_grammar(self, grammar: str) -> str:
        """Explains why the library does not accept a grammar in Lark, or that it was not checked;
        "": it does."""

        def check() -> str:
            try:
                return self._check(grammar)
            except ChecksSpentError:
                return "it was not checked"

        return with_deep_stack(check)

    def _check(self, grammar: str) -> str:
        is_new = grammar not in self._reasons
        self._characters -= _CHECK_CHARACTERS + len(grammar) if is_new else len(grammar) // 10
        if self._characters < 0 or (is_new and self._seconds <= 0):
            raise ChecksSpentError
        if is_new:
            begin = self._clock()
            self._reasons[grammar] = _invalid(grammar)
            self._seconds -= self._clock() - begin
        return self._reasons[grammar]


def _invalid(grammar: str) -> str:
    try:
        message = LLMatcher.validate_grammar(grammar, None, limits=LIMITS)
    except Exception as error:
        message = str(error) or "it is no grammar"
    return _refusal(message)


def invalid_patterns(root: Any, budget: CheckBudget) -> Iterator[tuple[str, dict[str, Any], str]]:
    """String schemas whose pattern the library does not accept: place, schema and reason of each.
    Patterns are the most common fault, and checking one is cheap."""
    pending: list[tuple[str, object]] = [("", root)]
    seen = set[str]()
    while pending:
        path, part = pending.pop()
        if not isinstance(part, dict):
            continue
        pattern, kinds = part.get("pattern"), part.get("type", "string")
        if isinstance(pattern, str) and "string" in (kinds if isinstance(kinds, list) else [kinds]):
            reason = budget.invalid({}, {"type": "string", "pattern": pattern})
            if reason and _UNSATISFIABLE not in reason:
                yield path, part, reason
        inner = {key: part[key] for key in part if key not in ("$defs", "definitions")}
        parts = [*subschemas(inner, path), *_referred(part, root, seen)]
        pending += reversed(parts)


def _referred(schema: Mapping[str, Any], root: Any, seen: set[str]) -> Iterator[tuple[str, object]]:
    """Place and target of a schema's reference, unless `seen` has it already; adds it to `seen`."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference not in seen:
        seen.add(reference)
        yield reference[2:].replace("/", "."), target_of(reference, root)


def innermost_invalid(
    root: Any, invalid: Callable[[Any], str], reason: str
) -> tuple[str, dict[str, Any], str]:
    """The smallest schema in `root` that the library refuses by itself: its place, the schema, and
    the reason."""
    schema, path, seen = root, "", set[str]()
    while True:
        parts: list[tuple[str, object]] = [*subschemas(schema, path)]
        parts.sort(key=lambda part: part[0].startswith(("$defs.", "definitions.")))
        parts += _referred(schema, root, seen)
        for place, part in parts:
            message = invalid(part) if isinstance(part, dict) and part is not schema else ""
            # An optional part that no value fits does not make the whole invalid.
            if message and (_UNSATISFIABLE in message) == (_UNSATISFIABLE in reason):
                schema, path, reason = part, place, message
                break
        else:
            return path, schema, reason


def culprit(part: dict[str, Any], invalid: Callable[[Any], str]) -> str | None:
    """A keyword without which the library accepts a schema; None if no single keyword is to
    blame."""
    for key in _candidates(part):
        if not invalid({name: value for name, value in part.items() if name != key}):
            return key
    return None


def _candidates(part: dict[str, Any]) -> Iterator[str]:
    keys, late = part.keys() - {"$defs", "definitions"}, ("patternProperties", "properties", "type")
    yield from sorted(keys - set(late), key=lambda key: (key != "pattern", key))
    yield from (key for key in late if key in keys)
