"""Random adapters of the small model, so large that they change every answer.

Standard library only, since the hub's pod makes its own. Knows no cluster.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping
from typing import Any, Final

RANK: Final = 4
SETTINGS: Final = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
SPREAD: Final = 1.0
"""Spread of the adapter's numbers, whose products outweigh those of the model."""
LENGTH_BYTES: Final = 8
"""Bytes of the header's length, with which a safetensors file begins."""


def adapter_files(config: Mapping[str, Any], seed: int) -> dict[str, bytes]:
    """The files of an adapter in PEFT's format, by name; `config`: the model's config.json."""
    width, out = int(config["intermediate_size"]), int(config["hidden_size"])
    draw = random.Random(seed)
    tensors: dict[str, tuple[list[int], bytes]] = {}
    for layer in range(config["num_hidden_layers"]):
        for side, shape in (("A", [RANK, width]), ("B", [out, RANK])):
            name = f"base_model.model.model.layers.{layer}.mlp.down_proj.lora_{side}.weight"
            numbers = array("f", (draw.gauss(0, SPREAD) for _ in range(shape[0] * shape[1])))
            tensors[name] = (shape, numbers.tobytes())
    return {
        "adapter_config.json": json.dumps(SETTINGS).encode(),
        "adapter_model.safetensors": _safetensors(tensors),
    }


def _safetensors(tensors: Mapping[str, tuple[list[int], bytes]]) -> bytes:
    header, content = {}, b""
    for name, (shape, numbers) in tensors.items():
        offsets = [len(content), len(content) + len(numbers)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        content += numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + content
