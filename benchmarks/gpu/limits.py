"""Figures to compare results of the GPU benchmarks with: the device's limits, our targets, and what
others reach. For the devices listed, with these shapes and workloads.

Limits follow from the device: 990 TFLOP/s of bfloat16 at 81 % as measured, 4.8 TB/s at 90 %. What
others reach on an H200 was predicted from their published figures on H100s, by memory bandwidth; it
was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEVICES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "H200": {
        "offline": {
            "limit": 36_200,
            "target": 27_000,
            "predicted_of_others": {"SGLang": 27_000},
        },
        "serving": {
            "limit": 6_900,
            "target": 4_300,
            "predicted_of_others": {"TensorRT-LLM": 4_200, "SGLang": 4_000, "vLLM": 3_520},
        },
        "long_prompt.itl_p99": {"target": 0.050},
        "long_prompt.ttft": {"limit": 5.1, "target": 7.0},
        "steps.idle": {"target": 0.02},
    },
    "H100": {"offline": {"target": 20_000}, "steps.idle": {"target": 0.02}},
}


def beside(figure: str, device: str) -> Mapping[str, Any]:
    """Values to add to the line of a figure; empty on another device."""
    found = next((rows for name, rows in DEVICES.items() if name in device), {})
    return found.get(figure, {})
