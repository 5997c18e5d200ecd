"""Sentences of the pages are short enough to be read once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "e2e/**/*.md", "images/*.md")
    for page in ROOT.glob(pattern)
)
MAX_WORDS: Final = 30
NO_PROSE: Final = re.compile(
    r"""\A---\n.*?^---$                # front matter
    | ^[ ]*```.*?^[ ]*```$             # a code block
    | (?<=\n\n)(?:[ ]{4}[^\n]*\n)+    # an indented code block
    | ^[ ]*\|[^\n]*$                  # a row of a table
    | ^\#+[ ][^\n]*$                  # a heading
    | (?<=\])\([^)]*\)                # the target of a link
    | </?[a-z][^>\n]*>                # a tag
    | ^>                              # the mark of a quotation""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
CODE_SPAN: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
BETWEEN_SENTENCES: Final = re.compile(
    r"""[.!?][*_)"\]]*(?=\s)      # a sentence ends
    | \n[ ]*(?=\n)                # a paragraph ends
    | ^[ ]*(?:[-*]|\d+\.)[ ]      # an item of a list begins""",
    re.VERBOSE | re.MULTILINE,
)
WORD: Final = re.compile(r"\S*\w\S*")


def test_no_sentence_of_a_page_is_long() -> None:
    long = [
        f"{page.relative_to(ROOT)}:{finding}"
        for page in PAGES
        for finding in _long_sentences(page.read_text())
    ]
    assert not long, "one fact a sentence:\n" + "\n".join(long)


def test_words_of_sentences_are_counted_as_a_reader_reads_them() -> None:
    def words(count: int) -> str:
        return "word " * (count - 1) + "word"

    page = f"""---
title: {words(31)}
---
# {words(31)}
{words(30)}. {words(29)} `one piece
of code`. {words(29)} [link](a target of words).

```
{words(31)}
```
| {words(31)} |

    {words(31)}

{words(16)}:
- {words(15)}
- {words(15)}; {words(15)}:
  word
1. {words(16)} - {words(14)} of (0.5)

{words(30)} **word.**
{words(30)}
"""
    found = [finding.partition(" words: ")[0] for finding in _long_sentences(page)]
    assert found == ["17: 31", "19: 32", "21: 31"]


def _long_sentences(page: str) -> Iterator[str]:
    """The line on which each long sentence begins, its number of words, its text."""
    text = CODE_SPAN.sub(_as_one_word, NO_PROSE.sub(_blank, page))
    start = 0
    ends = [match.span() for match in BETWEEN_SENTENCES.finditer(text)]
    for end, next_start in (*ends, (len(text), len(text))):
        words = WORD.findall(text, start, end)
        if len(words) > MAX_WORDS:
            line = 1 + text.count("\n", 0, text.index(words[0], start))
            yield f"{line}: {len(words)} words: {' '.join(text[start:end].split())}"
        start = next_start


def _blank(match: re.Match[str]) -> str:
    """The line breaks of what is not counted, so that lines keep their numbers."""
    return "\n" * match[0].count("\n")


def _as_one_word(code: re.Match[str]) -> str:
    """A piece of code without its spaces, with a line break of its own behind it."""
    return "·".join(code[0].split()) + _blank(code)
