"""Families that the values of `Family` describe."""

from __future__ import annotations

from typing import Final

from sluice_runtime.model.families.family import ExpertNames, Family

LLAMA: Final = Family()
"""Llama and Mistral."""
QWEN2: Final = Family(qkv_bias=True)
QWEN3: Final = Family(qk_norm=True)
QWEN3_MOE: Final = Family(qk_norm=True, experts=ExpertNames())
MIXTRAL: Final = Family(
    experts=ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6},
)
