"""Contract about the objects of a service in a cluster: labels, ports, metrics, the router's file,
termination messages."""
