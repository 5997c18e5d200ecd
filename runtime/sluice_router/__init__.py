"""A service's router: follows every engine, picks one for each request, passes its answer on.

It works on HTTP, EndpointSlices and load reports: it neither tokenises a prompt nor loads a model,
and imports neither the runtime nor the operator nor torch.
"""
