"""Converts clients' EBNF (GBNF, as in llama.cpp) to Lark for the grammar library; pure.

The library's lexer takes the longest match of each terminal, which could exclude valid texts. So
each part without recursion becomes one terminal; a grammar without recursion is one regular
expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import Final

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

from sluice_runtime.errors import GrammarError

_ROOT: Final = "root"
_LARK_RULE: Final = re.compile(r"^[ \t]*[?!]?\w+(\.\d+)?[ \t]*:(?!:=)", re.MULTILINE)
"""Beginning of a rule in Lark."""
_ESCAPED: Final = re.compile(r"(\\\\)|\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def lark_of(ebnf: str) -> str:
    """The grammar from its rule `root`, as Lark.

    Raises:
        GrammarError: the text is not valid EBNF.
    """
    try:
        rules = GrammarParser().parse(_ESCAPED.sub(_character, ebnf))
        return _Lark(rules).text()
    except GbnfToLarkError as error:
        hint = "; is it Lark? allowed: EBNF, as in llama.cpp" if _LARK_RULE.search(ebnf) else ""
        raise GrammarError(" ".join(str(error).split()) + hint) from None
    except (RecursionError, IndexError, OverflowError):
        raise GrammarError("it is nested too deeply, or ends within a text") from None


def _character(escape: re.Match[str]) -> str:
    """The character that an escape stands for, because the library's parser drops zeros in escapes;
    escapes with a meaning stay."""
    if escape[1]:
        return escape[1]
    code = int(escape[2] or escape[3], 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise GrammarError(f"{escape[0]} is no character")
    return chr(code)


class _Lark:
    """Rules as Lark; those that are not recursive are terminals."""

    def __init__(self, rules: Mapping[str, RuleNode]) -> None:
        self._rules = rules
        if _ROOT not in rules:
            raise GrammarError('it has no rule "root"; allowed: one that begins at root')
        uses = {name: set(_references(rule)) for name, rule in rules.items()}
        for name in sorted(set().union(*uses.values()) - rules.keys()):
            raise GrammarError(f'it has no rule "{name}"; allowed: names of rules in it')
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._plain = _not_recursive(uses)
        self._lines: list[str] = []

    def text(self) -> str:
        lines = [f"start: {self._name(_ROOT)}"]
        for name, rule in self._rules.items():
            if name in self._plain:
                lines.append(f"{self._name(name)}: {self._terminal(rule.alternatives)}")
            else:
                lines.append(f"{self._name(name)}: {self._rule(rule.alternatives)}")
        return "\n".join(lines + self._lines) + "\n"

    def _name(self, name: str) -> str:
        return f"{'T' if name in self._plain else 'r'}{self._numbers[name]}"

    def _is_plain(self, node: ASTNode) -> bool:
        return all(name in self._plain for name in _references(node))

    def _rule(self, node: ASTNode) -> str:
        if self._is_plain(node):
            return self._lifted(self._terminal(node))
        match node:
            case AlternativeNode(alternatives=parts):
                return "(" + " | ".join(map(self._rule, parts)) + ")"
            case SequenceNode(nodes=parts):
                return " ".join(self._parts(parts))
            case RepetitionNode(node=part, min_times=least, max_times=most):
                return f"({self._rule(part)}){_times(least, most)}"
            case RuleRefNode(name=name):
                return self._name(name)
        raise AssertionError(node)

    def _parts(self, parts: Sequence[ASTNode]) -> Iterator[str]:
        """Parts of a sequence; neighbours without recursion are joined into one terminal."""
        for plain, group in groupby(parts, self._is_plain):
            if plain:
                yield self._lifted(" ".join(map(self._terminal, group)))
            else:
                yield from map(self._rule, group)

    def _lifted(self, terminal: str) -> str:
        name = f"L{len(self._lines)}"
        self._lines.append(f"{name}: {terminal}")
        return name

    def _terminal(self, node: ASTNode) -> str:
        match node:
            case AlternativeNode(alternatives=parts):
                return "(" + " | ".join(map(self._terminal, parts)) + ")"
            case SequenceNode(nodes=parts):
                return " ".join(map(self._terminal, parts)) or '""'
            case RepetitionNode(node=part, min_times=least, max_times=most):
                return f"({self._terminal(part)}){_times(least, most)}"
            case RuleRefNode(name=name):
                return self._name(name)
            case LiteralNode(value=value):
                return '"' + value.replace("\n", "\\n").replace("\r", "\\r") + '"'
        return str(node)


def _times(least: int, most: int | None) -> str:
    if most is not None and most < least:
        raise GrammarError(f"{{{least},{most}}} is not allowed; allowed: the smaller number first")
    return f"{{{least},{'' if most is None else most}}}"


def _references(node: ASTNode) -> Iterator[str]:
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, RuleRefNode):
            yield node.name
        pending.extend(node.children())


def _not_recursive(uses: Mapping[str, set[str]]) -> set[str]:
    """Rules that lead to no recursive rule and are not recursive themselves."""
    order, plain = TopologicalSorter(uses), set[str]()
    with suppress(CycleError):
        order.prepare()
    while ready := order.get_ready():  # until only cycles are left
        plain.update(ready)
        order.done(*ready)
    return plain
