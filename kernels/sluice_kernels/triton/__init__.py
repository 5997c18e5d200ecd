"""Sluice's own kernels for GPUs, written in Triton; `operators` calls them, on tensors of a GPU.

`calls` says what is launched, without Triton; `kernels` holds the programs; `cubins` compiles them,
ahead or when first needed, with nothing but the assembler that Triton brings; `driver` launches
them. No C compiler takes part, so a pod needs none. `sluice_kernels.reference` says in torch what
they compute. Nothing here is imported where there is no GPU.
"""
