"""Sluice's own kernels for GPUs, written in Triton; `operators` calls them, on tensors of a GPU.

`calls` describes launches, without Triton; `kernels` holds the programs; `cubins` compiles them,
ahead or when first needed, with the assembler that comes with Triton; `driver` launches them. No C
compiler is involved, so a pod needs none. `sluice_kernels.reference` defines in torch what they
compute. Nothing here is imported without a GPU.
"""
