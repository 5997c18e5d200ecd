"""Start, supervision and end of an engine, and which resources of the machine it may use."""
