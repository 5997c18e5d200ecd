"""A service's router: follows every engine, picks one for each request, passes its answer on.

Knows HTTP, EndpointSlices and load reports; knows neither tokens nor models, and imports neither
the runtime nor the operator nor torch.
"""
