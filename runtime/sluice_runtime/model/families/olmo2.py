"""OLMo 2: norms only after each part; queries are normed over all heads at once, and so are
keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sluice_runtime.layers.adapters import AdapterBank
from sluice_runtime.layers.stack import LayerShape, LayerWeights
from sluice_runtime.model.families.family import Family, NormNames, qkv_sizes
from sluice_runtime.model.layer_tensors import Reader
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.parallel.group import Group


class _Olmo2(Family):
    def layer_shape(
        self, spec: ModelSpec, group: Group, bank: AdapterBank | None = None
    ) -> LayerShape:
        return replace(super().layer_shape(spec, group, bank), whole_qk_norm=True)

    def layer(self, reader: Reader, prefix: str, width: int, index: int) -> LayerWeights:
        layer, sizes = super().layer(reader, prefix, width, index), qkv_sizes(reader.spec)
        query = reader.row_norm(f"{prefix}.self_attn.q_norm", "q_proj", sizes["q_proj"])
        key = reader.row_norm(f"{prefix}.self_attn.k_norm", "k_proj", sizes["k_proj"])
        return replace(layer, whole_norms=(query, key))

    def norm_values(self, spec: ModelSpec, ranks: int) -> int:
        heads = spec.heads // ranks + spec.rank_kv_heads(ranks)
        return super().norm_values(spec, ranks) + heads * spec.head_dim


OLMO2: Final = _Olmo2(
    norms=NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    defaults={"rms_norm_eps": 1e-5},
)
