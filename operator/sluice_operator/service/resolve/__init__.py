"""What a service asks for, resolved: its pools, routers, model and keys, before any roll-out."""
