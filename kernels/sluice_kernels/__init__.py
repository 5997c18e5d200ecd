"""Sluice's own kernels: `native` calls those for CPUs, `triton.operators` those for GPUs, and
`reference` says in torch what they compute.

Knows tensors, pages and rows; imports nothing of Sluice.
"""
