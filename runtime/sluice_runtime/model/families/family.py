"""A family of models: how to read its config.json, which tensors its layers have, and how much
memory these take.

The methods implement Llama. A difference that several families share is a field here; a difference
of one family overrides a method, in its own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from sluice_contract.config.model_shape import (
    EXPERT_COUNTS,
    Experts,
    architecture_of,
)
from sluice_contract.config.packing import packing_of
from torch import Tensor

from sluice_runtime.layers.adapters import AdapterBank
from sluice_runtime.layers.attention import AttentionRule, LayerKind
from sluice_runtime.layers.packed import Matrix
from sluice_runtime.layers.rope import Rope
from sluice_runtime.layers.stack import ExpertsWeights, LayerShape, LayerWeights, MlpWeights
from sluice_runtime.model.config_json import Config
from sluice_runtime.model.layer_tensors import Reader, in_pair_order
from sluice_runtime.model.quantisation_config import format_from
from sluice_runtime.model.rope_config import ROPE_TYPES, rope_from
from sluice_runtime.model.spec import (
    FEATURES,
    Features,
    ModelSpec,
    dtype_of,
    refuse_unknown_features,
    shape_of,
    windows_of,
)
from sluice_runtime.model.weights import Checkpoint, WeightSource
from sluice_runtime.parallel.group import Group


@dataclass(frozen=True)
class NormNames:
    """Names of a layer's norms in checkpoints; None: there is none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def count(self) -> int:
        names = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return sum(name is not None for name in names)


@dataclass(frozen=True)
class ExpertNames:
    """Names of the part with experts and of an expert's matrices in checkpoints."""

    part: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_DENSE: Final = ExpertNames()


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture over the common decoder."""

    norms: NormNames = NormNames()
    norm_dtype: torch.dtype | None = None
    """Type of norms; None: that of the matrices."""
    qk_norm: bool = False
    """Whether each head of queries and keys has an RMS norm before the rotation."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases."""
    joined_gate_up: bool = False
    """Whether a checkpoint stores the gate and up matrices as one."""
    experts: ExpertNames | None = None
    """Names of the feed-forward parts of experts; None: there are none."""
    partial_rotary: bool = False
    """Whether partial_rotary_factor says which share of a head is rotated."""
    rope_types: tuple[str, ...] = ROPE_TYPES
    """Allowed types: those that transformers computes for the family."""
    whole_every: int | None = None
    """Every how many layers one attends to all tokens, while the others have a window; None: all
    layers attend alike."""
    sinks: bool = False
    """Whether layers have attention sinks."""
    native_lacks: str = ""
    """Parts that the compiled CPU kernels cannot compute, as text for a message; empty: none."""
    defaults: Config = field(default_factory=dict)
    """Values for missing keys other than sizes, whose defaults are in the contract's `DEFAULTS`."""
    features: Features = field(default_factory=dict)
    """Values that differ from those in `FEATURES`."""

    def spec(self, config: Config) -> ModelSpec:
        """Spec that a config.json of this family describes, with `defaults` for missing keys.

        Raises:
            ModelLoadError: names the key, its value and what is allowed.
        """
        read = EXPERT_COUNTS if self.experts else ()
        features = {**FEATURES, **self.features}
        features = {key: allowed for key, allowed in features.items() if key not in read}
        every = self.whole_every
        refuse_unknown_features(config, features, windows=every is not None)
        shape = shape_of(config, experts=self.experts is not None)
        rope, window_rope = self.ropes(config, shape.head_dim)
        return ModelSpec(
            **vars(shape),
            architecture=architecture_of(config) or "",
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=rope,
            dtype=dtype_of(config),
            quantised=format_from(config),
            packing=packing_of(config, shape),
            windows=windows_of(config, shape.layers, every, window_rope) if every else None,
            qkv_bias=self.qkv_bias,
        ).serving(shape.context_length_tokens)

    def ropes(self, config: Config, head_dim: int) -> tuple[Rope, Rope | None]:
        """Rope of most layers, and that of layers with a window where it differs."""
        return rope_from(config, head_dim, self.rope_types, partial=self.partial_rotary), None

    def layer_shape(
        self, spec: ModelSpec, group: Group, bank: AdapterBank | None = None
    ) -> LayerShape:
        """Shape of a layer on a rank of `group`."""
        windows = spec.windows
        return LayerShape(
            spec.heads // group.size,
            spec.rank_kv_heads(group.size),
            spec.head_dim,
            spec.norm_eps,
            group,
            qkv_bias=spec.qkv_bias,
            experts=spec.experts is not None,
            post_norms=self.norms.after_attention is not None,
            adapters=bank,
            activation=spec.activation,
            rule=AttentionRule(windows.tokens) if windows else None,
            windows=windows.layers if windows else frozenset(),
        )

    def layer_kinds(self, spec: ModelSpec) -> tuple[LayerKind, ...]:
        """Kinds of attention among the layers, each once."""
        whole = (None,) if spec.windows is None or len(spec.windows.layers) < spec.layers else ()
        windowed = (spec.windows.tokens,) if spec.windows else ()
        return tuple(LayerKind(window, self.sinks) for window in (*whole, *windowed))

    def prefix(self, checkpoint: Checkpoint) -> str:
        """Prefix of all names in the checkpoint except the output layer's."""
        return "model."

    def stored_name(self, checkpoint: Checkpoint, name: str) -> str:
        """Name in the checkpoint of the tensor that this class calls `name`."""
        return name

    def source(self, checkpoint: Checkpoint, weights: WeightSource) -> WeightSource:
        """The checkpoint's tensors, under the names that this class uses for them."""
        return weights

    def read_layer(self, reader: Reader, prefix: str, width: int, index: int = 0) -> LayerWeights:
        """Reads the layer whose tensor names begin with `prefix`; queries, keys and values have
        `width` inputs."""
        layer = self.layer(reader, prefix, width, index)
        reader.weights.settle()
        return in_pair_order(layer, reader.spec)

    def layer(self, reader: Reader, prefix: str, width: int, index: int) -> LayerWeights:
        """Tensors of a layer; their values are valid once the reader has settled: see
        `read_layer`."""
        spec, names, attention = reader.spec, self.norms, f"{prefix}.self_attn"
        sizes = qkv_sizes(spec)

        def norm(name: str | None) -> Tensor | None:
            if name is None:
                return None
            return reader.norm(f"{prefix}.{name}", spec.hidden_size, self.norm_dtype)

        attention_norm = norm(names.before_attention)
        query, key, value = self.qkv(reader, attention, width)
        return LayerWeights(
            attention_norm=attention_norm,
            query=query,
            key=key,
            value=value,
            qkv_biases=tuple(
                reader.bias(f"{attention}.{name}", size) for name, size in sizes.items()
            )
            if spec.qkv_bias
            else None,
            head_norms=(
                reader.norm(f"{attention}.q_norm", spec.head_dim, self.norm_dtype),
                reader.norm(f"{attention}.k_norm", spec.head_dim, self.norm_dtype),
            )
            if self.qk_norm
            else None,
            output=reader.matrix(f"{attention}.o_proj", spec.hidden_size, sizes["q_proj"]),
            attention_post_norm=norm(names.after_attention),
            mlp_norm=norm(names.before_mlp),
            mlp=self.mlp(reader, prefix, index),
            mlp_post_norm=norm(names.after_mlp),
        )

    def qkv(self, reader: Reader, attention: str, width: int) -> Iterator[Matrix]:
        """Matrices of queries, keys and values."""
        for name, size in qkv_sizes(reader.spec).items():
            yield reader.matrix(f"{attention}.{name}", size, width)

    def mlp(self, reader: Reader, prefix: str, index: int) -> MlpWeights | ExpertsWeights:
        """Feed-forward part of a layer."""
        spec, names = reader.spec, self.experts
        if names is None or spec.experts is None or index not in spec.experts.layers:
            return self._gated(reader, f"{prefix}.mlp", spec.intermediate_size, _DENSE)
        return self.expert_part(reader, f"{prefix}.{names.part}", names, spec.experts)

    def expert_part(
        self, reader: Reader, part: str, names: ExpertNames, experts: Experts
    ) -> ExpertsWeights:
        """Feed-forward part with experts whose tensor names begin with `part`."""
        return ExpertsWeights(
            router=reader.table(f"{part}.gate", experts.count, reader.spec.hidden_size),
            experts=[
                self._gated(reader, f"{part}.experts.{number}", experts.width, names)
                for number in range(experts.count)
            ],
            active=experts.active,
            renormalised=experts.renormalised,
        )

    def _gated(self, reader: Reader, part: str, width: int, names: ExpertNames) -> MlpWeights:
        hidden = reader.spec.hidden_size
        if self.joined_gate_up:
            widths = {"gate_proj": width, "up_proj": width}
            gate, up = reader.fused(f"{part}.gate_up_proj", widths, hidden)
        else:
            gate, up = (
                reader.matrix(f"{part}.{name}", width, hidden) for name in (names.gate, names.up)
            )
        return MlpWeights(gate, up, reader.matrix(f"{part}.{names.down}", hidden, width))

    def last_norm(self, spec: ModelSpec, stored: Tensor) -> Tensor:
        """Weights of the norm before the output layer, from the stored ones."""
        return stored

    def norm_values(self, spec: ModelSpec, ranks: int) -> int:
        """Weights of a layer's norms on one of `ranks` ranks."""
        return self.norms.count * spec.hidden_size + (2 * spec.head_dim if self.qk_norm else 0)

    def bias_values(self, spec: ModelSpec, ranks: int) -> int:
        """Number of weight values of a layer's attention on a rank besides matrices and norms."""
        heads = spec.heads // ranks + 2 * spec.rank_kv_heads(ranks)
        return heads * spec.head_dim if spec.qkv_bias else 0

    def expert_bias_values(self, spec: ModelSpec, experts: Experts) -> int:
        """Number of biases of a layer's router and `experts`: a rank's part of them."""
        return 0

    def expert_step_values(self, hidden: int, width: int) -> int:
        """Most values that an expert holds at once for each token; `width`: a rank's part of its
        width."""
        return max(hidden + width, 4 * width)

    def gathered_values(self, values: int, head_dim: int) -> int:
        """Values that plain torch's attention holds at once while it gathers `values` of them."""
        return values


def qkv_sizes(spec: ModelSpec) -> Mapping[str, int]:
    """Outputs of the matrices of queries, keys and values, by their names in checkpoints."""
    keys = spec.kv_heads * spec.head_dim
    return {"q_proj": spec.heads * spec.head_dim, "k_proj": keys, "v_proj": keys}
