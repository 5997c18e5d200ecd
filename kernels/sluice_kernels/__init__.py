"""Sluice's own kernels: `native` calls the kernels for CPUs, `triton.operators` those for GPUs;
`reference` defines in torch what each computes.

Knows tensors, pages and rows; imports nothing of Sluice.
"""
