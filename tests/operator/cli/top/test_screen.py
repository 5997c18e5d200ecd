"""The part of a picture that a terminal shows, and the keys that change it."""

from __future__ import annotations

from sluice_operator.cli.top.screen import Screen, actions

from tests.operator.cli.top.recorded import snapshot
from tests.operator.cli.top.test_picture import WHERE, console, drawn


def shown(screen: Screen, rows: int = 24) -> list[str]:
    on = console(80, rows)
    return drawn(screen.drawn(snapshot(), WHERE, on), on)


def press(screen: Screen, keys: bytes) -> None:
    for action in actions(keys):
        screen.act(action)


def test_every_line_can_be_reached() -> None:
    rows = 24
    everything = shown(Screen(), 200)[:-1]
    while not everything[-1]:
        everything.pop()
    screen = Screen()
    reached = shown(screen, rows)[:-1]
    for _ in everything[rows - 3 :]:
        press(screen, b"\x1b[B")
        lines = shown(screen, rows)
        assert len(lines) == rows
        if lines[:-1] != reached[-(rows - 1) :]:
            reached.append(lines[-2])
    assert [line for line in reached if line] == [line for line in everything if line]


def test_pages_ends_and_lines_are_named() -> None:
    screen = Screen()
    assert shown(screen)[-1].startswith("lines 1-23 of 4")
    press(screen, b"\x1b[6~\x1b[A")
    shown(screen)
    press(screen, b"G")
    last = shown(screen)
    assert "tiny" not in last[0]
    assert "ImagePullBackOff" in last[-2]
    press(screen, b"jjj\x1b[6~")
    assert shown(screen) == last, "there is nothing below the last line"
    press(screen, b"k")
    assert shown(screen) != last
    press(screen, b"\x1b[H")
    assert shown(screen) == shown(Screen())


def test_a_terminal_that_holds_all_names_no_lines() -> None:
    assert shown(Screen(), 80)[-1] == "q quits  ↑↓ scroll  s sorts, now by name  ? help"


def test_the_order_is_named() -> None:
    screen = Screen()
    orders = []
    for _ in range(5):
        orders.append(shown(screen, 80)[-1].partition("now by ")[2].partition("  ")[0])
        press(screen, b"s")
    assert orders == ["name", "queue", "running", "KV held", "name"]


def test_any_key_leaves_the_help() -> None:
    screen = Screen()
    before = shown(screen)
    press(screen, b"?")
    assert "sorts engines by name, queue, running, KV held" in shown(screen)[4]
    press(screen, b"s")
    assert shown(screen) == before


def test_keys_come_together_or_are_none() -> None:
    assert list(actions(b"\x1b[Bq\x1bOA\x1b[15~z\xff")) == ["down", "quit", "up", "", "", ""]
    screen = Screen()
    press(screen, b"z\x1b[15~")
    assert not screen.has_quit
    press(screen, b"q")
    assert screen.has_quit
