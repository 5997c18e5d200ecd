"""An engine that is asked to run on a GPU ends, and says what it looked for and what helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from sluice_contract.accelerators import Accelerator
from sluice_contract.config import EngineConfig, ModelRef
from sluice_contract.labels import Role
from sluice_runtime.accelerator import find_accelerator
from sluice_runtime.errors import AcceleratorMissingError


def config(accelerator: Accelerator | None) -> EngineConfig:
    return EngineConfig(
        model=ModelRef(uri="dummy://qwen3-tiny"), role=Role.DECODE, accelerator=accelerator
    )


def test_without_an_accelerator_in_its_file_it_runs_on_cpus(tmp_path: Path) -> None:
    assert find_accelerator(config(None), tmp_path) == Accelerator()
    assert find_accelerator(config(Accelerator()), tmp_path).is_cpu


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((), "there is none of /dev/nvidia[0-9]*, /dev/kfd, /dev/dri/renderD*"),
        (("dev/nvidiactl",), "there is none of /dev/nvidia[0-9]*"),
        (("dev/nvidia1", "dev/nvidia0"), "found are /dev/nvidia0, /dev/nvidia1, which this"),
        (("dev/kfd", "dev/dri/renderD128"), "found are /dev/dri/renderD128, /dev/kfd, which"),
    ],
)
def test_what_it_looked_for_and_what_helps_is_named(
    files: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    wanted = Accelerator(product="NVIDIA-A100-SXM4-40GB", count=2)
    with pytest.raises(AcceleratorMissingError) as caught:
        find_accelerator(config(wanted), tmp_path)
    text = str(caught.value)
    assert text.startswith("accelerator: 2 x NVIDIA-A100-SXM4-40GB is asked for, and ")
    assert says in text
    assert text.endswith("leave out spec.pools.decode.accelerator")
