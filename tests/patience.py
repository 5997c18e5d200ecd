"""How long a test waits for what must happen, on a machine that many share."""

from __future__ import annotations

from typing import Final

PATIENCE_SECONDS: Final = 60.0
"""Longer than anything takes that happens at all: only what never happens waits so long."""
