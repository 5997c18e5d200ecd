"""Columns of numbers on their way to the device. Knows not what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice_runtime.engine.device import Device

Whole = NDArray[np.int64]
Real = NDArray[np.float64]
Marks = NDArray[np.bool_]


def sent(device: Device, columns: Sequence[Whole | Real]) -> list[Tensor]:
    """One tensor for each of the columns; one copy carries whole numbers and others."""
    words: list[NDArray[Any]] = [column.view(np.int64) for column in columns]
    received = zip(columns, device.upload(words), strict=True)
    return [
        tensor.view(torch.float64) if column.dtype == np.float64 else tensor
        for column, tensor in received
    ]
