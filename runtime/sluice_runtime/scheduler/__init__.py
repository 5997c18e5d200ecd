"""Pure batch scheduling: admission, pages, retraction, limits.

No torch, no clock, no event loop: the engine drives it with a model, the tests with a fake runner,
the simulator with a cost model. Time is an argument, results are values.
"""
