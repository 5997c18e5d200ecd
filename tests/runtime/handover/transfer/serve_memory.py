"""A process that registers memory and lets it be read: BACKEND SEED SIZE.

Prints its session and the memory's address, and ends with its standard input.
"""

from __future__ import annotations

import json
import sys

from sluice_runtime.handover.transfer.registry import TransferSettings, create_backend

from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents


def main() -> None:
    name, seed, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    memory = MemoryBlock(size)
    memory.fill(contents(seed, size))
    backend = create_backend(name, TransferSettings(host="127.0.0.1"))
    backend.register(memory.address, memory.size)
    print(json.dumps([backend.session, memory.address]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
