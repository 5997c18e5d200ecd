"""Keys of a quantised checkpoint that are not implemented are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.config.supported import QUANTISATIONS
from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.quantisation_config import FORMATS, format_from

from tests.runtime.model.quantised_checkpoints import awq, block_fp8, compressed, gptq


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("fp8", ["quantization_config: 'fp8'", "an object"]),
        ({"bits": 4}, ["quantization_config.quant_method: None", "awq", "fp8", "gptq"]),
        ({"quant_method": "bitsandbytes"}, ["quant_method: 'bitsandbytes'", "modelopt"]),
        ({"quant_method": "quark"}, ["quant_method: 'quark'", "'mxfp4'"]),
        (block_fp8(128, 128) | {"fmt": "e5m2"}, ["quantization_config.fmt: 'e5m2'", "'e4m3'"]),
        (block_fp8(128, 0), ["weight_block_size: [128, 0]", "two whole numbers"]),
        (block_fp8(128), ["weight_block_size: [128]"]),
        (compressed() | {"format": "pack-quantized"}, ["format: 'pack-quantized'"]),
        (compressed() | {"sparsity_config": {"format": "sparse-24"}}, ["sparsity_config.format"]),
        (compressed() | {"transform_config": {"a": 1}}, ["transform_config", "absent"]),
        (compressed() | {"config_groups": None}, ["config_groups: None"]),
        (compressed(num_bits=4), ["config_groups.group_0.weights.num_bits: 4", "allowed: 8"]),
        (compressed(type="int"), ["config_groups.group_0.weights.type: 'int'", "'float'"]),
        (compressed(strategy="group"), ["weights.strategy: 'group'", "'channel'"]),
        (compressed(block_structure=[8, 8]), ["block_structure", "strategy 'block'"]),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ["quant_algo: 'NVFP4'", "'FP8'"]),
        (awq(128) | {"bits": 8}, ["bits: 8", "allowed: 4"]),
        (awq(128) | {"version": "gemv"}, ["version: 'gemv'", "'gemm'"]),
        (awq(128) | {"zero_point": False}, ["zero_point: False", "True"]),
        (awq(100), ["group_size: 100", "multiple of 8"]),
        (gptq(128, desc_act=True), ["quantization_config.desc_act: True", "False"]),
        (gptq(128, checkpoint_format="marlin"), ["checkpoint_format: 'marlin'", "'gptq_v2'"]),
        (gptq(128, dynamic={"-:lm_head": {}}), ["dynamic", "absent"]),
        (gptq(128, bits=3), ["bits: 3"]),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(written: Any, parts: list[str]) -> None:
    with pytest.raises(ModelLoadError) as caught:
        format_from({"quantization_config": written})
    for part in parts:
        assert part in str(caught.value)


def test_the_old_name_of_the_key_is_read_and_null_is_none() -> None:
    assert format_from({"compression_config": compressed()}) is not None
    assert format_from({"quantization_config": None}) is None


def test_the_operator_knows_the_same_methods() -> None:
    assert sorted(FORMATS) == sorted(QUANTISATIONS)
