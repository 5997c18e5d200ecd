"""Short hashes for names: equal values have equal hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

DIGITS: Final = 10


def digest(value: Any) -> str:
    """Ten hexadecimal digits of the SHA-256 of `value`'s canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
