"""Pieces of text, with the tool calls that are in them taken out."""

from __future__ import annotations

from dataclasses import replace

from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.tools.calls import CallParser, whole_calls


def with_calls(piece: Piece, parser: CallParser) -> Piece:
    """The piece as the client gets it. An answer with calls that ends by itself ends in them."""
    parsed = parser.push(piece.text)
    if piece.finish_reason is None:
        return replace(piece, text=parsed.text, calls=parsed.calls)
    rest = parser.finish()
    called = parser.calls > 0 and piece.finish_reason == "stop"
    return replace(
        piece,
        text=parsed.text + rest.text,
        calls=whole_calls([*parsed.calls, *rest.calls]),
        finish_reason="tool_calls" if called else piece.finish_reason,
    )
