"""Counts in sentences for people. Knows no load."""

from __future__ import annotations


def engines(count: int, verb: tuple[str, str] | None = None) -> str:
    """`1 engine`, `3 engines`; `verb`: of one, and of several."""
    words = f"{count} engine" if count == 1 else f"{count} engines"
    return words if verb is None else f"{words} {verb[0] if count == 1 else verb[1]}"
