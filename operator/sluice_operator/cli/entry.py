"""Entry point of `sluice`: sets up signals before the slow imports."""

from __future__ import annotations

from sluice_contract.interrupts import end_quietly


def main() -> int:
    """The command's exit status."""
    end_quietly()
    from sluice_operator.cli import main as cli

    return cli.main()
