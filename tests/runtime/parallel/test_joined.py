"""What is refused before any rank is started."""

from __future__ import annotations

import pytest
import torch
from sluice_contract.config.accelerators import Accelerator
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.parallel.joined import joined_ranks

from tests.runtime.harness import resolved_config


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    accelerator = Accelerator(product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, count=2)
    config = resolved_config("dummy://qwen3-tiny", accelerator=accelerator, tensor_parallel_size=2)
    with pytest.raises(InvalidConfigError, match=r"tensorParallelSize: 2 .* allowed: at most 1"):
        joined_ranks(config, torch.device("cuda", 0)).__enter__()
