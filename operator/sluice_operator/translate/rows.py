"""One row a flag: what it is called there, which of our settings it is, and how they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_operator.translate.values import Convert, words


@dataclass(frozen=True)
class Flag:
    """A flag of another engine."""

    names: tuple[str, ...]
    """Without dashes in front; the first is shown."""
    path: str = ""
    """Our setting, below `spec`; empty: there is nothing to set."""
    says: str = ""
    """What the setting means here, or why there is none."""
    convert: Convert | None = words
    """None: the flag takes no value."""
    value: Any = None
    """Ours, of a flag that takes none."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Further settings that it asks for, by path."""


def switch(name: str, path: str, value: Any, says: str) -> Flag:
    """A flag without a value that stands for one of ours."""
    return Flag((name,), path, says, None, value)


def needless(*names: str, says: str) -> Flag:
    """A flag that the operator takes care of."""
    return Flag(names, "", says)


HOST: Final = needless("host", says="not needed: every pod listens on its own address")
PORT: Final = needless("port", says="not needed: the front Service listens on port 80")
