"""What one grammar is known by."""

from __future__ import annotations

from typing import NamedTuple

from sluice_runtime.messages import GrammarKind


class GrammarKey(NamedTuple):
    """What tells one compiled grammar from another."""

    kind: GrammarKind
    text: str
