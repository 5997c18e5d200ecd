"""A prefill engine in a process of its own: `python -m tests.runtime.handover.prefill_engine
SETTINGS`, the JSON of what `running` takes. Its first line says where it is; its stdin ends it."""

from __future__ import annotations

import json
import sys

import msgspec

from tests.runtime.handover.engines import running

if __name__ == "__main__":
    with running("prefill", **json.loads(sys.argv[1])) as engine:
        print(msgspec.json.encode(engine.ref()).decode(), flush=True)
        sys.stdin.read()
