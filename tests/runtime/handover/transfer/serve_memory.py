"""A process that registers memory and lets it be read: BACKEND SEED SIZE.

Prints its session and the memory's address, and ends with its standard input.
"""

from __future__ import annotations

import json
import sys

from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents
from tests.runtime.handover.transfer.peers import local_backend


def main() -> None:
    name, seed, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    memory = MemoryBlock(size)
    memory.fill(contents(seed, size))
    backend = local_backend(name)
    backend.register(memory.address, memory.size)
    print(json.dumps([backend.session, memory.address]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
