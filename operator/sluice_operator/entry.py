"""`sluice`, as it is installed: what a signal does comes first, then the imports."""

from __future__ import annotations

from sluice_contract.interrupts import end_quietly


def main() -> int:
    """The command's exit status."""
    end_quietly()
    from sluice_operator import cli

    return cli.main()
