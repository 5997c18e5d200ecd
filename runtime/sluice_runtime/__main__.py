"""`python -m sluice_runtime --config FILE`: one engine, as a container runs it."""

from __future__ import annotations

import sys

from sluice_runtime.launch import main

if __name__ == "__main__":
    sys.exit(main())
