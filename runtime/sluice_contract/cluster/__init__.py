"""What a cluster holds of a service: labels, ports, metrics, the router's file, exit messages."""
