"""Writes the generated pages: `python -m docs.generate [FOLDER]` (default: docs/reference)."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.configuration import configuration_page
from docs.generate.kinds import pool_page, service_page
from docs.generate.metrics import metrics_page
from docs.generate.router import router_page


def generated_pages() -> dict[str, str]:
    """File name → content."""
    return {
        "configuration.md": configuration_page(),
        "inferenceservice.md": service_page(),
        "enginepool.md": pool_page(),
        "router-configuration.md": router_page(),
        "metrics.md": metrics_page(),
    }


def main(arguments: list[str]) -> None:
    """Writes every page into the folder given."""
    folder = Path(arguments[0] if arguments else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in generated_pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
