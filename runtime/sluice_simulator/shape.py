"""What the time of a step depends on, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepShape:
    """Tokens of prompts, their attended pairs, decode rows, and what these attend to."""

    extend_tokens: int
    extend_context_products: int
    decode_rows: int
    decode_context_tokens: int
