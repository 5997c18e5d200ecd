"""Writes the files: `python -m dashboards [FOLDER]`; see its --help."""

from __future__ import annotations

import argparse
from pathlib import Path

from dashboards.grafana import to_json
from dashboards.pages import DASHBOARDS
from dashboards.rules import kustomization, prometheus_rule, rule_file


def generated_files(runbook_url_base: str = "") -> dict[str, str]:
    """File name → content."""
    pages = {f"{page.uid}.json": to_json(page) for page in DASHBOARDS}
    return {
        **pages,
        "sluice.rules.yaml": rule_file(runbook_url_base),
        "prometheus_rule.yaml": prometheus_rule(runbook_url_base),
        "kustomization.yaml": kustomization(tuple(pages)),
    }


def main() -> None:
    """Writes every file into the folder given."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dashboards/generated"))
    text = "where the files of docs/runbooks are served: what `runbook_url` begins with"
    parser.add_argument("--runbook-url-base", default="", help=text)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in generated_files(options.runbook_url_base).items():
        (options.folder / name).write_text(text)


if __name__ == "__main__":
    main()
