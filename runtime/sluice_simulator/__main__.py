"""Entry point: names the extra to install if the simulator's requirements are missing."""

from __future__ import annotations

import signal
import sys
from typing import Final

from sluice_contract.interrupts import end_quietly

from sluice_simulator.errors import INSTALL

NEEDED: Final = f"the simulator needs {{}}; it comes with the extra `simulate`: {INSTALL}"


def main() -> int:
    """The command's exit status."""
    try:
        from sluice_simulator.cli import main as command
    except ModuleNotFoundError as error:
        print(NEEDED.format(error.name), file=sys.stderr)
        return 2
    return command()


if __name__ == "__main__":
    end_quietly()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the process without a traceback
    sys.exit(main())
