"""Replays request traces against the real scheduler, with a cost model in place of a model.

The scheduler has three drivers: the engine gives it a device, the tests a fake, and this package a
formula for step times and a clock that jumps. So the simulated scheduler is the one that runs in
engines. No torch, sockets or event loop here.
"""
