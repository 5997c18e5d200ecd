"""Chooses the backend that computes attention, with the reason: a pure choice from the device, the
model's heads and what is installed.

Knows neither torch's devices nor the backends themselves, which are in `layers.backend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sluice_contract.base import ConfigError
from sluice_contract.config import accelerators
from sluice_contract.config.engine import AttentionBackend

from sluice_runtime.errors import InvalidConfigError

Name = Literal["native", "torch", "flashinfer"]
Prefill = Literal["auto", "fa2", "fa3"]
"""Kernels of flashinfer that compute prompts; auto: chosen for each step."""
Vendor = Literal["NVIDIA", "AMD"]
Capability = tuple[int, int]

KEY: Final = "attentionBackend"
FLASHINFER_DTYPES: Final = ("bfloat16", "float16")
FLASHINFER_HEAD_DIMS: Final = (64, 128, 256)
"""Head dimensions that flashinfer's templates support."""
FLASHINFER_FROM: Final[Capability] = (7, 5)
"""Lowest compute capability for flashinfer: Turing's, the first with the matrix instructions that
its kernels use."""
BFLOAT16_FROM: Final[Capability] = divmod(accelerators.BFLOAT16_FROM, 10)
"""Lowest compute capability whose matrix instructions compute bfloat16; below it flashinfer's
kernels end with a trap (`mma.cuh` of 0.6.13)."""
HOPPER: Final = 9
"""Major compute capability for which FA3 has kernels."""
NAMES: Final[Mapping[AttentionBackend, Name]] = {
    "native": "native",
    "torch": "torch",
    "flashinfer": "flashinfer",
    "flashinfer-fa2": "flashinfer",
    "flashinfer-fa3": "flashinfer",
}
PREFILL: Final[Mapping[AttentionBackend, Prefill]] = {
    "flashinfer-fa2": "fa2",
    "flashinfer-fa3": "fa3",
}
"""Values of `attentionBackend` that fix the kernels for prompts."""
NEEDS_CPU: Final = "it computes on CPUs"
NEEDS_NVIDIA: Final = "it computes on NVIDIA's GPUs"
FP8_PAGES: Final = "pages of 8 bits (kvCacheDtype)"
UNTRIED: Final = "nobody has run this engine on GPUs of AMD"


@dataclass(frozen=True)
class GpuKind:
    """Vendor and capability of a GPU."""

    vendor: Vendor
    capability: Capability = (0, 0)
    """Compute capability of an NVIDIA GPU, e.g. (9, 0) for sm_90."""

    def __str__(self) -> str:
        return "AMD" if self.vendor == "AMD" else f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class FlashinferState:
    """Availability of flashinfer for one model on one GPU."""

    missing: str | None = None
    """Reason why flashinfer cannot be used; None: it can."""
    to_compile: int = 0
    """Number of modules that were not built ahead. nvcc makes each at its first call, in
    minutes."""
    fa3_missing: str | None = None
    """Reason why FA3 is unavailable on Hopper; None: it was built ahead."""
    compiler: bool = False
    """Whether nvcc is installed."""


@dataclass(frozen=True)
class Situation:
    """Facts that the choice depends on."""

    dtype: str
    """Type of activations and of the KV pool."""
    head_dim: int
    gpu: GpuKind | None = None
    """The GPU of the engine; None: the engine computes on CPUs."""
    native_missing: str | None = None
    """Reason why the compiled kernels are unavailable; None: they are available."""
    native_isa: str = ""
    """Instruction set that the compiled kernels use here."""
    native_dtypes: tuple[str, ...] = ()
    flashinfer: FlashinferState = FlashinferState()
    fp8_pages: bool = False
    """Whether the KV pool's numbers have 8 bits."""
    native_lacks: str = ""
    """Parts of the model that the compiled kernels do not compute, e.g. sliding windows."""
    sinks: bool = False
    """Whether the model has attention sinks."""


@dataclass(frozen=True)
class AttentionChoice:
    """A backend, and the reason for the choice, for the log."""

    name: Name
    message: str
    prefill: Prefill = "fa2"
    """Kernels of flashinfer that compute prompts."""


def choose_attention(situation: Situation, setting: AttentionBackend = "auto") -> AttentionChoice:
    """The fastest backend that can compute the model here, or the backend that `setting` names.

    Raises:
        InvalidConfigError: the named backend cannot; names key, value, what is allowed and why.
    """
    obstacles = _obstacles(situation)
    if setting == "auto":
        fastest: Name = "native" if situation.gpu is None else "flashinfer"
        obstacle = obstacles[fastest]
        name = fastest if obstacle is None else "torch"
        message = _message(name, situation, obstacle)
    else:
        name = NAMES[setting]
        message = f"{_named(name, situation)}, as {KEY} asks for"
        obstacle = obstacles[name]
        if obstacle is None and setting == "flashinfer-fa3":
            obstacle = _without_fa3(situation)
        if obstacle is not None:
            raise _refusal(setting, obstacle, obstacles)
    if name != "flashinfer":
        return AttentionChoice(name, message)
    prefill = PREFILL.get(setting) or _prefill(situation)
    return AttentionChoice(name, message + _remarks(situation, setting, prefill), prefill)


def _refusal(
    setting: AttentionBackend, obstacle: str, obstacles: Mapping[Name, str | None]
) -> InvalidConfigError:
    able = ", ".join(("auto", *(name for name in ("native", "flashinfer") if not obstacles[name])))
    return InvalidConfigError(
        str(ConfigError(KEY, setting, f"{able} or torch ({setting}: {obstacle})"))
    )


def _prefill(situation: Situation) -> Prefill:
    """Kernels for prompts. FA3 is used only if it was built ahead, since it is slow to compile and
    FA2 can compute everything."""
    on_hopper = situation.gpu is not None and situation.gpu.capability[0] == HOPPER
    has_fa3 = on_hopper and not _fa3_lacks(situation) and situation.flashinfer.fa3_missing is None
    return "auto" if has_fa3 else "fa2"


def _remarks(situation: Situation, setting: AttentionBackend, prefill: Prefill) -> str:
    gpu, state = situation.gpu, situation.flashinfer
    remarks = []
    if gpu and gpu.capability[0] == HOPPER and state.fa3_missing and setting not in PREFILL:
        remarks.append(f"FA2 computes all prompts, since FA3 lacks {state.fa3_missing}")
    elif gpu and gpu.capability[0] == HOPPER and (lacks := _fa3_lacks(situation)):
        remarks.append(f"FA2 computes all prompts, since FA3 {lacks}")
    modules = state.to_compile + (prefill == "fa3" and state.fa3_missing is not None)
    if modules:
        remarks.append(f"{modules} modules were not built ahead: nvcc compiles them, minutes each")
    return "".join(f"; {remark}" for remark in remarks)


def _message(name: Name, situation: Situation, obstacle: str | None) -> str:
    if obstacle is None:
        return _named(name, situation)
    slower = ", several times slower" if situation.native_missing or situation.gpu else ""
    return f"{_named(name, situation)}{slower}: {obstacle}"


def _named(name: Name, situation: Situation) -> str:
    if name == "native":
        return f"native for {situation.native_isa}"
    if situation.gpu is None:
        return "plain torch"
    if name == "flashinfer":
        return f"flashinfer for {situation.gpu}"
    on_amd = f" ({UNTRIED})" if situation.gpu.vendor == "AMD" else ""
    return f"plain torch on {situation.gpu}{on_amd}"


def _obstacles(situation: Situation) -> Mapping[Name, str | None]:
    """Reasons why backends cannot compute the model here, by name, the fastest backend first; None:
    it can."""
    return {
        "native": _without_native(situation),
        "flashinfer": _without_flashinfer(situation),
        "torch": None,
    }


def _without_native(situation: Situation) -> str | None:
    if situation.gpu is not None:
        return NEEDS_CPU
    if situation.native_missing is not None:
        return situation.native_missing
    if situation.dtype not in situation.native_dtypes:
        return f"the kernels do not compute {situation.dtype}"
    if situation.native_lacks:
        return f"the kernels do not compute {situation.native_lacks}"
    return None


def _without_flashinfer(situation: Situation) -> str | None:
    gpu = situation.gpu
    if gpu is None or gpu.vendor != "NVIDIA":
        return NEEDS_NVIDIA
    if gpu.capability < FLASHINFER_FROM:
        return f"flashinfer has no kernels for {gpu}"
    if situation.dtype not in FLASHINFER_DTYPES:
        return f"flashinfer does not compute {situation.dtype}"
    if situation.dtype == "bfloat16" and gpu.capability < BFLOAT16_FROM:
        return f"flashinfer does not compute bfloat16 on {gpu} (dtype float16 is computed)"
    if situation.head_dim not in FLASHINFER_HEAD_DIMS:
        return f"flashinfer has no kernels for heads of {situation.head_dim}"
    return situation.flashinfer.missing


def _fa3_lacks(situation: Situation) -> str | None:
    """Reason why FA3 cannot compute the model on any GPU; None: it can."""
    if situation.fp8_pages:
        return f"does not read {FP8_PAGES}"
    return "is not built with sinks" if situation.sinks else None


def _without_fa3(situation: Situation) -> str | None:
    if situation.gpu is None or situation.gpu.capability[0] != HOPPER:
        return f"FA3 has no kernels for {situation.gpu}"
    if lacks := _fa3_lacks(situation):
        return f"FA3 {lacks}"
    state = situation.flashinfer
    return None if state.compiler else state.fa3_missing
