"""Writes the files: `python -m dashboards [FOLDER]` (default: dashboards/generated)."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards.grafana import to_json
from dashboards.pages import DASHBOARDS
from dashboards.rules import kustomization, prometheus_rule, rule_file


def generated_files() -> dict[str, str]:
    """File name → content."""
    pages = {f"{page.uid}.json": to_json(page) for page in DASHBOARDS}
    return {
        **pages,
        "sluice.rules.yaml": rule_file(),
        "prometheus_rule.yaml": prometheus_rule(),
        "kustomization.yaml": kustomization(tuple(pages)),
    }


def main(arguments: list[str]) -> None:
    """Writes every file into the folder given."""
    folder = Path(arguments[0] if arguments else "dashboards/generated")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in generated_files().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
