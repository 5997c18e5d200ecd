"""`python -m sluice_runtime --config FILE`: the command that runs one engine in a container."""

from __future__ import annotations

import sys

from sluice_contract.interrupts import end_quietly


def _main() -> int:
    end_quietly()  # until the supervisor waits for signals
    from sluice_runtime.process.launch import main
    from sluice_runtime.process.start import process_began

    return main(began=process_began())


if __name__ == "__main__":
    sys.exit(_main())
