"""Pictures of pages: every kind of panel, also one whose series has holes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dashboards.draw import Series, Span, draw, line_of
from dashboards.model import Dashboard
from dashboards.pages import fleet, service

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dashboards")]


def values(expr: str) -> Series:
    """Something for every expression but those about retries."""
    if "retries" in expr:
        return []
    points = [(float(at), math.sin(at / 9) + 1 if at % 7 else math.nan) for at in range(60)]
    labels = {"role": "decode", "state": "ready", "namespace": "default", "reason": "Why"}
    return [(labels, points)]


@pytest.mark.parametrize("page", [service.PAGE, fleet.PAGE], ids=lambda page: page.uid)
def test_a_page_becomes_a_picture(page: Dashboard, tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    draw(page, values, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_line_has_a_hole_where_nothing_was_known() -> None:
    points = [(10.0, 1.0), (10.5, 2.0), (14.0, 3.0), (14.5, math.nan)]
    drawn = line_of(points, Span(begin=9.0, end=20.0, step=0.5))
    assert [at for at, _ in drawn] == [1.0, 1.5, 1.5, 5.0, 5.5]
    assert [value for _, value in drawn] == pytest.approx(
        [1, 2, math.nan, 3, math.nan], nan_ok=True
    )
