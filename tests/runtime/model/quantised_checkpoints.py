"""Small checkpoints as quantisers write them, beside the numbers that they mean: packed and
unpacked here number by number, as the formats are published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MATRICES = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("qkv_proj", "gate_up_proj", "w1", "w2", "w3"),
)
Tensors = dict[str, Tensor]
Quantise = Callable[[Tensor], tuple[Tensors, Tensor]]
"""[out, in] → what is stored, by the last part of the name, and what it means, [out, in]."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of eight that each 4 bits of an int32 hold, from the lowest (AutoAWQ)."""


def fp8(scale_name: str, shape: str, block: tuple[int, int] = (1, 1)) -> Quantise:
    """e4m3 and a scale of shape `shape`: tensor, scalar, channel, outputs or block."""

    def quantise(weight: Tensor) -> tuple[Tensors, Tensor]:
        height, width = weight.shape
        if shape == "block":
            sizes = -(-height // block[0]), -(-width // block[1])
        else:
            sizes = (height, 1) if shape in ("channel", "outputs") else (1, 1)
        tall, wide = -(-height // sizes[0]), -(-width // sizes[1])
        tall, wide = block if shape == "block" else (tall, wide)
        scale, stored = torch.empty(sizes), torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        meant = torch.empty_like(weight)
        for i in range(sizes[0]):
            for j in range(sizes[1]):
                at = slice(i * tall, (i + 1) * tall), slice(j * wide, (j + 1) * wide)
                scale[i, j] = weight[at].abs().max() / 448
                stored[at] = (weight[at] / scale[i, j]).to(torch.float8_e4m3fn)
                meant[at] = stored[at].float() * scale[i, j]
        shapes = {"tensor": (1,), "scalar": (), "outputs": (height,)}
        scale = scale.reshape(shapes.get(shape, sizes))
        return {"weight": stored, scale_name: scale, "input_scale": torch.ones(())}, meant

    return quantise


def int4(
    method: str, group: int, less: int = 0, zeros: bool = True, index: bool = False
) -> Quantise:
    """AWQ's or GPTQ's 4 bits; `less`: what is taken from stored zeros."""

    def quantise(weight: Tensor) -> tuple[Tensors, Tensor]:
        out, width = weight.shape
        size = width if group == -1 else group
        numbers, means = torch.empty(width, out, dtype=torch.int32), torch.empty(out, width)
        scales = torch.empty(width // size, out, dtype=torch.float16)
        offsets = torch.full((width // size, out), 8, dtype=torch.int32)
        for g in range(width // size):
            inputs = slice(g * size, (g + 1) * size)
            part = weight[:, inputs]
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            if zeros:
                scales[g] = ((high - low) / 15).half()
                offsets[g] = (-low / scales[g].float()).round().clamp(1, 15).int()
            else:
                scales[g] = (part.abs().amax(1) / 7).half()
            own = scales[g].float()[:, None]
            rounded = (part / own).round().int() + offsets[g][:, None]
            rounded = rounded.clamp(0, 15)
            numbers[inputs] = rounded.T
            means[:, inputs] = (rounded - offsets[g][:, None]) * own
        stored = {"scales": scales}
        if method == "awq":
            stored["qweight"] = _packed_rows(numbers, AWQ_ORDER)
            stored["qzeros"] = _packed_rows(offsets, AWQ_ORDER)
        else:
            stored["qweight"] = _packed_rows(numbers.T.contiguous(), range(8)).T.contiguous()
            if zeros:
                stored["qzeros"] = _packed_rows(offsets - less, range(8))
        if index:
            stored["g_idx"] = torch.tensor([i // size for i in range(width)], dtype=torch.int32)
        return stored, means

    return quantise


def _packed_rows(numbers: Tensor, order: Any) -> Tensor:
    """Eight numbers of a row in one int32."""
    rows = []
    for row in numbers.tolist():
        packed = []
        for at in range(0, len(row), 8):
            value = sum((row[at + number] & 15) << 4 * i for i, number in enumerate(order))
            packed.append(value - (1 << 32) if value >= 1 << 31 else value)
        rows.append(packed)
    return torch.tensor(rows, dtype=torch.int32)


_BY_OUTPUT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
_DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


def compressed(**weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    group = {"targets": ["Linear"], "weights": _BY_OUTPUT | weights, "input_activations": _DYNAMIC}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
        "sparsity_config": {},
        "kv_cache_scheme": None,
    }


def awq(group: int) -> dict[str, Any]:
    """As AutoAWQ writes it."""
    method = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return {**method, "version": "gemm", "modules_to_not_convert": None}


def gptq(group: int, **more: Any) -> dict[str, Any]:
    """As AutoGPTQ and GPTQModel write it."""
    method = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False}
    return {**method, "sym": True, "damp_percent": 0.01, **more}


def block_fp8(*block: int) -> dict[str, Any]:
    """As DeepSeek and Qwen write it."""
    method = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return {**method, "weight_block_size": list(block), "modules_to_not_convert": ["lm_head"]}


SCHEMES: dict[str, tuple[dict[str, Any], Quantise]] = {
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8("weight_scale", "tensor")),
    "fp8-blocks": (block_fp8(64, 40), fp8("weight_scale_inv", "block", (64, 40))),
    "fp8-small-blocks": (block_fp8(32, 32), fp8("weight_scale_inv", "block", (32, 32))),
    "fp8-large-blocks": (block_fp8(128, 128), fp8("weight_scale_inv", "block", (128, 128))),
    "compressed-channel": (compressed(), fp8("weight_scale", "channel")),
    "compressed-tensor": (compressed(strategy="tensor"), fp8("weight_scale", "tensor")),
    "compressed-block": (
        compressed(strategy="block", block_structure=[32, 32]),
        fp8("weight_scale", "block", (32, 32)),
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8("weight_scale", "scalar")),
    "outputs": ({"quant_method": "fp8"}, fp8("weight_scale", "outputs")),
    "awq": (awq(32), int4("awq", 32)),
    "awq-narrow": (awq(16), int4("awq", 16)),
    "awq-one-group": (awq(-1), int4("awq", -1)),
    "gptq": (gptq(32), int4("gptq", 32, less=1, index=True)),
    "gptq-one-group": (gptq(-1), int4("gptq", -1, less=1)),
    "gptq-v2": (gptq(32, checkpoint_format="gptq_v2", sym=False), int4("gptq", 32, index=True)),
    "gptq-no-zeros": (gptq(32), int4("gptq", 32, zeros=False)),
}

EXPERTS = ("gate_up_proj", "down_proj")
"""Of gpt-oss: [experts, in, out]."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4(weight: Tensor) -> tuple[Tensors, Tensor]:
    """[experts, in, out] → `_blocks` and `_scales`, and what they mean, [experts, in, out]."""
    experts, width, out = weight.shape
    blocks = torch.empty(experts, out, width // 32, 16, dtype=torch.uint8)
    scales = torch.empty(experts, out, width // 32, dtype=torch.uint8)
    meant = torch.empty_like(weight)
    grid = torch.tensor([*E2M1, *(-number for number in E2M1)])
    for at in range(0, width, 32):
        part = weight[:, at : at + 32].transpose(1, 2)
        exponents = part.abs().amax(-1, keepdim=True).log2().floor() - 2
        nearest = (part / 2**exponents)[..., None].sub(grid).abs().argmin(-1)
        meant[:, at : at + 32] = (grid[nearest] * 2**exponents).transpose(1, 2)
        blocks[:, :, at // 32] = (nearest[..., ::2] + 16 * nearest[..., 1::2]).to(torch.uint8)
        scales[:, :, at // 32] = (exponents[..., 0] + 127).to(torch.uint8)
    return {"_blocks": blocks, "_scales": scales}, meant


def write_mxfp4(model: Path, quantised: Path, meant: Path) -> None:
    """A copy of a gpt-oss `model`, its experts in MXFP4; in `meant` the same numbers."""
    stored: Tensors = {}
    numbers: Tensors = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        numbers[name] = tensor
        if name.rpartition(".")[2] not in EXPERTS:
            stored[name] = tensor
            continue
        own, numbers[name] = mxfp4(tensor)
        stored |= {f"{name}{part}": value for part, value in own.items()}
    config = json.loads((model / "config.json").read_text())
    save_file(stored, quantised / "model.safetensors")
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    written = {**config, "quantization_config": method}
    (quantised / "config.json").write_text(json.dumps(written))
    save_file(numbers, meant / "model.safetensors", {"format": "pt"})
    (meant / "config.json").write_text(json.dumps(config))


def write_quantised(model: Path, scheme: str, quantised: Path, meant: Path | None = None) -> Path:
    """A copy of `model` in the scheme; in `meant` the same numbers, not quantised."""
    settings, quantise = SCHEMES[scheme]
    stored: Tensors = {}
    numbers: Tensors = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        if kind != "weight" or module.rpartition(".")[2] not in MATRICES:
            stored[name] = numbers[name] = tensor
            continue
        own, numbers[name] = quantise(tensor)
        stored |= {f"{module}.{part}": value for part, value in own.items()}
    config = json.loads((model / "config.json").read_text())
    save_file(stored, quantised / "model.safetensors")
    if scheme == "modelopt":  # beside config.json
        algorithm = {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head"],
        }
        written = {"producer": {"name": "modelopt"}, "quantization": algorithm}
        (quantised / "hf_quant_config.json").write_text(json.dumps(written))
    else:
        config = {**config, "quantization_config": settings}
    (quantised / "config.json").write_text(json.dumps(config))
    if meant is not None:
        save_file(numbers, meant / "model.safetensors", {"format": "pt"})
        (meant / "config.json").write_text((model / "config.json").read_text())
    return quantised
