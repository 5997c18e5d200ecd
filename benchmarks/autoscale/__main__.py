"""`python -m benchmarks.autoscale`."""

from __future__ import annotations

from importlib import import_module

from benchmarks.autoscale.compiled import use_compiled_fleet

if __name__ == "__main__":
    use_compiled_fleet()
    import_module("benchmarks.autoscale.command").main()
