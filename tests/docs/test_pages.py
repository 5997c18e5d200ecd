"""Pages point at files and targets that exist, and their sentences are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.markdown import anchor

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("e2e/**/*.md"))
)
LINK = re.compile(r"\]\((?!https?://)(?P<target>[^)#]*)(?:#(?P<anchor>[^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
CODE_SPAN = re.compile(r"`[^`]+`")
MAKE = re.compile(r"`make (?P<target>[a-z0-9-]+)")
NO_PROSE = re.compile(r"^ *```.*?^ *```|^ *[|#].*?$|^> ?", re.MULTILINE | re.DOTALL)
"""Code blocks, tables, headings; of a quotation its marks."""
BETWEEN_SENTENCES = re.compile(
    r"""(?<=[.!?:])[*)"]*\s+   # a sentence ends, or a part of it with a colon
    | \n\s*\n                 # a paragraph ends
    | \n\s*(?:[-*]|\d+\.)\s   # an item of a list begins""",
    re.VERBOSE,
)
MAX_WORDS = 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_make_target_of_a_page_exists(page: Path) -> None:
    text = page.read_text()
    for match in LINK.finditer(CODE.sub("", text)):
        target = page.parent / match["target"] if match["target"] else page
        assert target.exists(), match["target"]
        assert match["anchor"] is None or match["anchor"] in _anchors(target), match[0]
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for match in MAKE.finditer(text):
        assert match["target"] in targets or match["target"].endswith("-"), match["target"]


@pytest.mark.parametrize("folder", ["how-to", "reference", "explanation", "."])
def test_the_map_names_every_page(folder: str) -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    pages = {page for page in (ROOT / "docs" / folder).glob("*.md") if page.name != "README.md"}
    listed = {ROOT / "docs" / match["target"] for match in LINK.finditer(text)}
    assert pages - listed == set(), "docs/README.md has a line for each"


def test_no_sentence_is_long() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    long = [
        f"{page.relative_to(ROOT)}, {len(words)} words: {' '.join(words)}"
        for page in pages
        for sentence in BETWEEN_SENTENCES.split(_prose(page.read_text()))
        if len(words := sentence.split()) > MAX_WORDS
    ]
    assert not long, "write two sentences, or more:\n" + "\n".join(long)


def _prose(page: str) -> str:
    """The page's text, with each piece of code as one word."""
    return CODE_SPAN.sub(lambda code: "·".join(code[0].split()), NO_PROSE.sub("", page))


def _anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(page.read_text())}


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES
