"""The operator's former release, which gave a service of mode Mixed no key. A program of its own;
`forget_key` makes the same of the release that a test runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice_operator.__main__ import main
from sluice_operator.manifests import engine_pool
from sluice_operator.service.resolve import router, settings


def forget_key(patch: Callable[[Any, str, Any], None]) -> None:
    """No Secret, and no file that names it; `patch` sets an attribute."""
    for module in (settings, router):
        patch(module, "HANDOVER_KEY_FILE", None)
    for module in (engine_pool, router):
        patch(module, "handover_secret_name", _no_name)


def _no_name(_: str) -> None:
    return None


if __name__ == "__main__":
    forget_key(setattr)
    raise SystemExit(main())
