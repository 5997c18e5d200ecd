"""A process that has no part in a service and reaches its ports: `python -m
tests.runtime.handover.transfer.stranger PEER ADDRESS LENGTH`.

Reads the peer's memory by Mooncake and writes zeros into it. Prints which of both went through, and
goes on writing until its standard input ends.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
from typing import Any

from sluice_runtime.handover.transfer.mooncake_engine import start_engine


def main() -> None:
    peer, address, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine: Any = start_engine("127.0.0.1", "tcp", None)
    theirs, zeros = (ctypes.create_string_buffer(length) for _ in range(2))
    for buffer in (theirs, zeros):
        assert engine.register_memory(ctypes.addressof(buffer), length) == 0
    reads = engine.transfer_sync_read(peer, ctypes.addressof(theirs), address, length) == 0
    writes = engine.transfer_sync_write(peer, ctypes.addressof(zeros), address, length) == 0
    print(json.dumps({"reads": reads, "writes": writes}), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        engine.transfer_sync_write(peer, ctypes.addressof(zeros), address, length)


if __name__ == "__main__":
    main()
