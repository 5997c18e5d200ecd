"""What `sluice top` draws of a cluster: nothing but what was recorded goes in."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType
from sluice_operator.cli.top.picture import SORTS, Look, picture
from sluice_operator.cli.top.screen import Screen
from sluice_operator.cli.top.snapshot import RouterLoad, Snapshot

from tests.operator.cli.top.recorded import CHAT, chat, load, service, service_load, snapshot
from tests.operator.golden import assert_golden

WHERE = "namespace shop"
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
"""Sets a colour."""
FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Fonts that a picture would load from elsewhere."""


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


def test_the_picture_of_the_page_is_what_is_drawn() -> None:
    on = console(100, 33, has_colours=True)
    on.record = True
    on.print(Screen().drawn(replace(snapshot(), notes=()), WHERE, on))
    picture = on.export_svg(title="sluice top -n shop", unique_id="top")
    assert_golden("../../docs/pictures/top.svg", FONTS.sub("", picture) + "\n")


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


def test_the_ledger_of_the_status_is_shown_with_its_age_where_no_router_gives_counts() -> None:
    lines = drawn(picture(snapshot(), WHERE, Look(120)), console(120))
    requests = [line for line in lines if line.startswith("  requests")]
    assert "abandoned, 0 lost" in requests[0]
    assert requests[1].endswith(
        "7 answered, 0 resumed, 0 refused, 0 abandoned, 2 lost; up to 5 min old"
    )


def test_engines_of_a_pool_are_sorted_by_what_they_do() -> None:
    places = {}
    for sort in SORTS:
        text = "\n".join(drawn(picture(snapshot(), WHERE, Look(120, sort)), console(120)))
        names = ("4jk8s", "9w2xx", "bb7ln", "kk3rt")
        places[sort] = sorted(names, key=text.index)
    assert places["name"] == ["kk3rt", "4jk8s", "9w2xx", "bb7ln"]
    assert places["queue"] == ["4jk8s", "9w2xx", "bb7ln", "kk3rt"]
    assert places["running"] == places["KV held"] == ["4jk8s", "bb7ln", "9w2xx", "kk3rt"]


@pytest.mark.parametrize(
    ("held", "bar"),
    [
        (1000, "━━━━━━━━━━"),
        (997, "━━━━━━━━━━"),
        (990, "━━━━━━━━━─"),
        (600, "━━━━━━───·"),
        (410, "━━━━───···"),
        (0, "───·······"),
    ],
)
def test_a_bar_is_full_where_its_percentage_is(held: int, bar: str) -> None:
    loads = {CHAT: RouterLoad("r", service_load(load("d", "decode", 0, 1, held)))}
    lines = drawn(
        picture(Snapshot(snapshot().now, (chat(),), loads=loads), WHERE, Look(120)), console(120)
    )
    (row,) = [line for line in lines if line.startswith("    d ")]
    assert f" {bar} " in row
