"""How many engines each pool of a service should have: pure decisions.

The operator calls `decide` with what routers report, the simulator with simulated fleets.
"""
