"""Accelerators: what a pool asks for, which nodes have it, and how certain that is."""
