"""Documentation points at files that exist, and commands at targets that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("e2e/**/*.md"))
)
LINK = re.compile(r"\]\((?!https?://|#)(?P<target>[^)#]+)")
CODE = re.compile(r"`[^`\n]*`")
MAKE = re.compile(r"`make (?P<target>[a-z-]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_make_target_of_a_page_exists(page: Path) -> None:
    text = page.read_text()
    for match in LINK.finditer(CODE.sub("", text)):
        assert (page.parent / match["target"]).exists(), match["target"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for match in MAKE.finditer(text):
        assert match["target"] in targets or match["target"].endswith("-"), match["target"]


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES
