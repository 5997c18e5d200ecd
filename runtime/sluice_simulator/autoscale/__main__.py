"""`python -m sluice_simulator.autoscale`, also reached as `sluice autoscale replay`."""

from __future__ import annotations

import signal
import sys

from sluice_contract.interrupts import end_quietly

from sluice_simulator.autoscale.command import main

if __name__ == "__main__":
    end_quietly()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, and not a traceback
    sys.exit(main())
