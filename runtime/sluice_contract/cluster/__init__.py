"""Contract about a cluster's objects of a service: labels, ports, metrics, the router's file, exit
messages."""
