"""Phi-3, Phi-3.5 and Phi-4: queries, keys and values are one matrix in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_runtime.layers.packed import Matrix
from sluice_runtime.model.families.family import Family, qkv_sizes
from sluice_runtime.model.layer_tensors import Reader


class _Phi3(Family):
    def qkv(self, reader: Reader, attention: str, width: int) -> Iterator[Matrix]:
        return reader.fused(f"{attention}.qkv_proj", qkv_sizes(reader.spec), width)


PHI3: Final = _Phi3(
    partial_rotary=True,
    joined_gate_up=True,
    rope_types=("default", "longrope"),
    defaults={"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
)
