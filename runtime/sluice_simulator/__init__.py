"""Replays request traces against the real scheduler, with a cost model in place of a model.

The scheduler is the same one that runs in engines. Where the engine gives it a device, this package
gives it a formula for step times and a clock that jumps from event to event. It needs no torch,
sockets or event loop.
"""
