"""How many engines each pool of a service should have: pure decisions.

The operator calls `decide` with routers' reports, the simulator with simulated fleets.
"""
