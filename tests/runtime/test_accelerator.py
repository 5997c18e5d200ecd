"""The GPUs that an engine finds are those it is given; too few end it with what helps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineConfig, ModelRef
from sluice_runtime.errors import AcceleratorMissingError
from sluice_runtime.process.accelerator import (
    GpuDevice,
    UnreadableError,
    find_accelerator,
    nvml_gpus,
)

A100 = GpuDevice("NVIDIA A100-SXM4-40GB", 40_960)
T4 = GpuDevice("Tesla T4", 15_360)


def config(accelerator: Accelerator | None) -> EngineConfig:
    return EngineConfig(
        model=ModelRef(uri="dummy://qwen3-tiny"), role=Role.DECODE, accelerator=accelerator
    )


@pytest.fixture
def container(tmp_path: Path) -> Callable[..., Path]:
    """A root folder with files, of which some have content."""

    def made(*empty: str, **content: str) -> Path:
        for name, text in {**dict.fromkeys(empty, ""), **content}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return made


def unreadable() -> list[GpuDevice]:
    raise UnreadableError("the driver is ill")


def test_without_an_accelerator_in_its_file_it_runs_on_cpus(container: Callable[..., Path]) -> None:
    root = container("dev/nvidia0")
    assert find_accelerator(config(None), root, unreadable) == Accelerator()
    assert find_accelerator(config(Accelerator()), root, unreadable).is_cpu


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        (Accelerator(product="NVIDIA-A100-SXM4-40GB", count=1), [A100, A100], (A100, 1)),
        (Accelerator(count=2), [T4, T4], (T4, 2)),
        (Accelerator(product="T4"), [T4], (T4, 1)),
        (Accelerator(product="NVIDIA-A100-SXM4-40GB", count=1), [T4], (T4, 1)),
        (
            Accelerator(product="T4", count=2),
            [T4, A100],
            (GpuDevice(A100.product, T4.memory_mib), 2),
        ),
    ],
)
def test_it_reports_the_devices_it_uses_and_another_product_is_no_error(
    wanted: Accelerator,
    there: list[GpuDevice],
    found: tuple[GpuDevice, int],
    container: Callable[..., Path],
) -> None:
    gpu, count = found
    assert find_accelerator(config(wanted), container("dev/nvidia0"), lambda: there) == Accelerator(
        product=gpu.product, memory_mib=gpu.memory_mib, count=count
    )


def test_amds_devices_are_those_whose_files_the_container_has(
    container: Callable[..., Path],
) -> None:
    drm = "sys/class/drm/renderD{}/device/{}"
    root = container(
        "dev/kfd",
        "dev/dri/renderD129",
        **{
            drm.format(128, "product_name"): "of another container",
            drm.format(129, "product_name"): "AMD Instinct MI300X OAM\n",
            drm.format(129, "mem_info_vram_total"): f"{192 << 30}\n",
        },
    )
    found = find_accelerator(config(Accelerator(count=1)), root, unreadable)
    assert found == Accelerator(product="AMD Instinct MI300X OAM", memory_mib=196_608, count=1)


@pytest.mark.parametrize(
    ("files", "nvidia", "says"),
    [
        ((), unreadable, "there is none of /dev/nvidia[0-9]*, /dev/kfd, /dev/dri/renderD*"),
        (("dev/nvidiactl",), unreadable, "there is none of /dev/nvidia[0-9]*"),
        (("dev/dri/renderD128",), unreadable, "there is none of /dev/nvidia[0-9]*"),
        (("dev/nvidia0",), unreadable, "the driver is ill"),
        (("dev/nvidia0",), lambda: [T4], "the container has 1: Tesla T4"),
        (("dev/nvidia0",), list, "the container has 0: none"),
    ],
)
def test_what_it_found_and_what_helps_is_named(
    files: tuple[str, ...], nvidia: Any, says: str, container: Callable[..., Path]
) -> None:
    wanted = Accelerator(product="NVIDIA-A100-SXM4-40GB", count=2)
    with pytest.raises(AcceleratorMissingError) as caught:
        find_accelerator(config(wanted), container(*files), nvidia)
    text = str(caught.value)
    assert text.startswith("accelerator: 2 x NVIDIA-A100-SXM4-40GB is asked for, and ")
    assert says in text
    assert text.endswith(
        "leave out accelerator of the InferenceService, or accelerator of engine.json"
    )


class FakeNvml(ModuleType):
    """The functions of nvidia-ml-py that are called: `gpus` by handle, of which `divided` ones have
    parts at some of seven indices."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self, gpus: dict[str, GpuDevice], divided: dict[str, dict[int, str]]) -> None:
        super().__init__("pynvml")
        self.gpus, self.divided = gpus, divided
        self.open = False

    def nvmlInit(self) -> None:
        if not self.gpus:
            raise self.NVMLError("Driver Not Loaded")
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return sum("/" not in handle for handle in self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return [handle for handle in self.gpus if "/" not in handle][index]

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle not in self.divided:
            raise self.NVMLError_NotSupported
        return [int(bool(self.divided[handle])), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index not in self.divided[handle]:
            raise self.NVMLError_NotFound
        return self.divided[handle][index]

    def nvmlDeviceGetName(self, handle: str) -> str | None:
        assert self.open
        return self.gpus[handle].product

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=(self.gpus[handle].memory_mib or 0) << 20)


PART = GpuDevice("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4_864)


@pytest.mark.parametrize(
    ("gpus", "divided", "found"),
    [
        ({"a": A100, "b": T4}, {"a": {}}, [A100, T4]),
        ({"a": A100, "a/0": PART, "a/3": PART}, {"a": {0: "a/0", 3: "a/3"}}, [PART, PART]),
    ],
)
def test_gpus_are_listed_and_of_divided_ones_their_parts(
    gpus: dict[str, GpuDevice],
    divided: dict[str, dict[int, str]],
    found: list[GpuDevice],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = FakeNvml(gpus, divided)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert nvml_gpus() == found
    assert not library.open


def test_an_image_for_cpus_and_a_missing_driver_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UnreadableError, match="take the one for GPUs"):
        nvml_gpus()
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml({}, {}))
    with pytest.raises(UnreadableError, match="says: Driver Not Loaded"):
        nvml_gpus()


def test_the_fake_library_has_what_the_real_one_has() -> None:
    real = pytest.importorskip("pynvml")
    called = [name for name in vars(FakeNvml) if name.lower().startswith("nvml")]
    assert not [name for name in called if not hasattr(real, name)]
