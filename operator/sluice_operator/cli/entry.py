"""Entry point of `sluice`: sets up signals, and says what it waits for, before the slow imports."""

from __future__ import annotations

import sys

from sluice_contract.interrupts import end_quietly


def main() -> int:
    """The command's exit status."""
    end_quietly()
    if sys.argv[1:2] == ["top"] and sys.stdout.isatty():
        print("sluice top: connecting …", end="\r", flush=True)  # `top.command` clears the line
    from sluice_operator.cli import main as cli

    return cli.main()
