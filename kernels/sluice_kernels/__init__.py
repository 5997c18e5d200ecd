"""Sluice's own kernels for CPUs: `native` calls them, `reference` says in torch what they compute.

Knows tensors, pages and rows; imports nothing of Sluice.
"""
