"""Kubernetes quantities as numbers, for comparison, and in one spelling: `1024Mi` and `1Gi` are one
amount.

A spec allows fewer spellings, which `api/base.py` checks.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i|)")
_SUFFIXES: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12, "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40, "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip


_SPELT: Final = ("Mi", "Gi", "Ti", "Pi", "Ei", "M", "G", "T", "P", "E")
"""Suffixes of whole amounts; a thousand cores are 1000, not 1k."""


def amount(value: Any) -> Decimal | None:
    """The number that `value` stands for; None when it is no quantity."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix in _SUFFIXES:
        return Decimal(number) * _SUFFIXES[suffix]
    return Decimal(number + suffix) if suffix[0] in "eE" else None


def is_at_most(value: Any, limit: Any) -> bool:
    """Whether `value` is at most `limit`. True if either is not a quantity: the field's own rule
    refuses that."""
    value_amount, most = amount(value), amount(limit)
    return value_amount is None or most is None or value_amount <= most


def spelling(value: Any) -> str:
    """The shortest text for an amount, which all its spellings have in common; `value` is one of
    them."""
    exact = amount(value)
    assert exact is not None, "not an amount"
    if exact != exact.to_integral_value():
        scaled = exact * 1000
        return f"{int(scaled)}m" if scaled == int(scaled) else f"{exact.normalize():f}"
    texts = [f"{int(exact)}"]
    for suffix, unit in _SUFFIXES.items():
        if suffix in _SPELT and exact and exact % unit == 0:
            texts.append(f"{int(exact / unit)}{suffix}")
    return min(texts, key=len)
