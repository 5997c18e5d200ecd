"""What `sluice top` draws of a cluster: nothing but what was recorded goes in."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from sluice_operator.cli.top.picture import Look, fitted, picture
from sluice_operator.cli.top.snapshot import RouterLoad, Snapshot

from tests.operator.cli.top.recorded import chat, load, service, service_load, snapshot
from tests.operator.golden import assert_golden

WHERE = "namespace shop"
PAGE = Path(__file__).resolve().parents[4] / "docs/how-to/watch-a-service.md"
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
"""Sets a colour."""


def console(columns: int, rows: int = 200, *, has_colours: bool = False) -> Console:
    system = "truecolor" if has_colours else None
    return Console(
        file=io.StringIO(),
        width=columns,
        height=rows,
        force_terminal=has_colours,
        color_system=system,  # type: ignore[arg-type]  # one of its names
        highlight=False,
    )


def drawn(part: RenderableType, on: Console) -> list[str]:
    with on.capture() as captured:
        on.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("columns", [80, 120])
def test_all_is_drawn_within_the_columns(columns: int) -> None:
    lines = drawn(picture(snapshot(), WHERE, Look(columns)), console(columns))
    assert max(map(len, lines)) <= columns
    assert_golden(f"top/{columns}-columns.txt", "\n".join(lines) + "\n")


def test_the_page_shows_what_is_drawn() -> None:
    lines = drawn(picture(replace(snapshot(), notes=()), WHERE, Look(80)), console(80))
    first = "\n".join(lines).partition("\n\nshop/tiny")[0]
    assert f"```text\n{first}\n```" in PAGE.read_text()


def test_a_colour_says_nothing_that_words_do_not() -> None:
    plain = drawn(picture(snapshot(), WHERE, Look(80)), console(80))
    coloured = drawn(picture(snapshot(), WHERE, Look(80)), console(80, has_colours=True))
    assert any("\x1b[" in line for line in coloured)
    assert [SEQUENCE.sub("", line).rstrip() for line in coloured] == plain


def test_a_message_moves_no_cursor() -> None:
    item = chat()
    item["status"]["scaling"]["message"] = "a\x1b[2Jb\nc"
    lines = drawn(picture(replace(snapshot(), services=(item,)), WHERE, Look(120)), console(120))
    assert any("QueueShort: a [2Jb c" in line for line in lines)


@pytest.mark.parametrize(
    ("scaling", "counts", "line"),
    [
        (
            {"inTimePercent": "11.2", "inTimeRequests": 107},
            {"queued": 95, "slo_late_requests": 90},
            "11.2 % of 107 requests kept it; 95 wait now, 90 are late",
        ),
        ({"inTimePercent": "100", "inTimeRequests": 12}, {}, "100 % of 12 requests kept it"),
        ({}, {"queued": 7, "slo_late_requests": 0}, "7 wait now"),
        ({}, {"queued": 7}, None),  # no slo
        ({}, {"queued": 0, "slo_late_requests": 0}, None),
    ],
)
def test_requests_that_wait_stand_beside_the_share_of_those_that_were_counted(
    scaling: dict[str, Any], counts: dict[str, int], line: str | None
) -> None:
    item = chat()
    item["status"]["scaling"] = {
        "reason": "Steady", "message": "", "time": "2026-11-28T10:58:00Z",
    } | scaling  # fmt: skip
    decode = load("d", "decode", counts.pop("queued", 0), 13, 900, **counts)
    loads = {("shop", "chat"): RouterLoad("r", service_load(decode))}
    lines = drawn(
        picture(Snapshot(snapshot().now, (item,), loads=loads), WHERE, Look(120)), console(120)
    )
    slo = [text.split("slo", 1)[1].strip() for text in lines if text.startswith("  slo ")]
    assert slo == ([line] if line else [])


def test_without_rights_what_the_service_itself_says_is_left() -> None:
    known = snapshot()
    lines = drawn(picture(Snapshot(known.now, known.services), WHERE, Look(80)), console(80))
    (decode,) = [line.split() for line in lines if line.startswith("  decode")]
    assert decode[:6] == ["decode", "3", "of", "3", "ready,", "2"]
    assert decode[-4:] == ["-"] * 4
    assert "  routers   unknown" in lines


def test_a_service_that_nobody_has_looked_at_has_a_row() -> None:
    new = service("new")
    del new["status"]
    lines = drawn(picture(Snapshot(snapshot().now, (new,)), WHERE, Look(80)), console(80))
    assert lines[2] == "shop/new  not ready: not looked at yet"
    assert lines[3].startswith("  roll-out  Waiting: NotObserved")


def test_no_service_is_said() -> None:
    lines = drawn(picture(Snapshot(snapshot().now, ()), WHERE, Look(80)), console(80))
    assert lines[-1] == "No InferenceServices in namespace shop."


@pytest.mark.parametrize(
    ("rows", "hint"),
    [
        (60, None),
        (34, "… engines left out: sluice top NAME, a higher terminal, or --once"),
        (12, "… 15 more lines and engines left out: sluice top NAME, or --once"),
    ],
)
def test_what_a_terminal_has_no_room_for_is_named(rows: int, hint: str | None) -> None:
    on = console(80, rows)
    lines = drawn(fitted(snapshot(), WHERE, on), on)
    assert len(lines) <= rows
    assert any("x7k2p" in line for line in lines) is (hint is None)
    assert any("no right to list enginepools" in line for line in lines)
    assert hint is None or lines[-1] == hint
