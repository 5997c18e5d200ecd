"""Pages point at files and targets that exist."""

from __future__ import annotations

import re
import tomllib
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
MAKE = re.compile(r"`make (?P<target>[a-z0-9-]+)")


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


def _anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(page.read_text())}


def test_a_how_to_names_every_program_that_is_installed() -> None:
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    text = "".join(page.read_text() for page in ROOT.glob("docs/how-to/*.md"))
    assert {name for name in programs if f"`{name.replace('-', ' ')} " not in text} == set()


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES
