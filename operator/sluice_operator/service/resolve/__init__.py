"""A service's request, resolved: its pools, routers, model and keys, before any roll-out."""
