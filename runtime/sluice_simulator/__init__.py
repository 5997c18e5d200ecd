"""Replays request traces against the real scheduler, with a cost model in place of a model.

One of the scheduler's three drivers: the engine gives it a device, the tests a fake, this package
a formula for how long a step takes and a clock that jumps. What was simulated is what runs. Knows
no tensor, no socket and no event loop.
"""
