"""A service's front door: knows every engine, picks one for each request, passes bytes through.

Knows HTTP, EndpointSlices and load reports; knows neither tokens nor models, and imports neither
the runtime nor the operator nor torch.
"""
