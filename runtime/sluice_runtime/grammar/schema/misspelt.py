"""Keys of a schema that are one slip away from a keyword; pure.

By the specification what is no keyword is an annotation. But who writes `requierd` would find out
by answers without what they require.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sluice_contract.http_errors import shown

from sluice_runtime.grammar.schema.keywords import KEYWORDS, at, refused

_FEWEST_LETTERS: Final = 5
"""In shorter ones a slip makes another word: `note` is not meant to be `not`."""


class Spelling:
    """Of the keywords that restrict values. The first letter of a key is taken to be right."""

    def __init__(self, keywords: Iterable[str]) -> None:
        self._keywords = frozenset(keywords)
        self._plain = {keyword.lower(): keyword for keyword in self._keywords}
        self._by_initial: dict[str, dict[str, str]] = {}
        for plain, keyword in self._plain.items():
            self._by_initial.setdefault(plain[0], {})[plain] = keyword

    def refuse_misspelt(self, schema: Mapping[str, Any], path: str) -> None:
        """Raises GrammarError; names the keyword that may be meant."""
        for key, value in schema.items():
            meant = None if key in self._keywords else self.meant(key)
            if meant is not None and _fits(meant, value):
                raise refused(
                    at(path, shown(key)),
                    value,
                    f"{meant}, or an annotation with another name, such as x-{shown(key)}",
                    f"is given to no keyword (did you mean {meant}?)",
                )

    def meant(self, key: str) -> str | None:
        """The keyword that is one slip away; None: there is none."""
        if not key[:1].isalpha() or key.startswith(("x-", "x_")):
            return None
        plain = key.replace("_", "").replace("-", "").lower()
        if plain in self._plain or len(plain) < _FEWEST_LETTERS:
            return self._plain.get(plain)
        near = (
            keyword
            for other, keyword in self._by_initial.get(plain[0], {}).items()
            if abs(len(plain) - len(other)) <= 1 and _is_one_slip(plain, other)
        )
        return min(near, default=None)


def _fits(keyword: str, value: object) -> bool:
    """Whether it is what one would set the keyword to: an annotation rarely is."""
    if keyword in KEYWORDS:
        return KEYWORDS[keyword].fits(value)
    return isinstance(value, bool | dict | list | int)


def _is_one_slip(given: str, meant: str) -> bool:
    """One letter more, less or instead, or two that changed places."""
    start = _alike(given, meant)
    given, meant = given[start:], meant[start:]
    end = _alike(given[::-1], meant[::-1])
    given, meant = given[: len(given) - end], meant[: len(meant) - end]
    return max(len(given), len(meant)) <= 1 or (len(given) == 2 and given == meant[::-1])


def _alike(one: str, other: str) -> int:
    """How many letters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
