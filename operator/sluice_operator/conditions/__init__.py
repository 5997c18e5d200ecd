"""Ordered pure checks, each with a reason and a message."""
