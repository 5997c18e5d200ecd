"""Which backend computes attention where, and what the log and refusals say of it."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.config import accelerators
from sluice_contract.config.engine import AttentionBackend
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.layers.attention_choice import (
    FlashinferState,
    GpuKind,
    Situation,
    choose_attention,
)

H200, A100, V100, T4 = (
    GpuKind("NVIDIA", capability) for capability in ((9, 0), (8, 0), (7, 0), (7, 5))
)
KERNELS: dict[str, Any] = {"native_isa": "amx", "native_dtypes": ("float32", "bfloat16")}
SLOWER = "several times slower"

CHOICES: dict[str, tuple[Situation, str, str]] = {
    "a CPU": (Situation("bfloat16", 128, **KERNELS), "native", "native for amx"),
    "no kernels": (
        Situation("bfloat16", 128, native_missing="_native.so was not built"),
        "torch",
        f"plain torch, {SLOWER}: _native.so was not built",
    ),
    "float16 on a CPU": (
        Situation("float16", 128, **KERNELS),
        "torch",
        "plain torch: the kernels do not compute float16",
    ),
    "a GPU": (Situation("bfloat16", 128, H200), "flashinfer", "flashinfer for sm_90"),
    "Turing": (Situation("float16", 64, T4), "flashinfer", "flashinfer for sm_75"),
    "bfloat16 on Turing": (
        Situation("bfloat16", 64, T4),
        "torch",
        f"plain torch on sm_75, {SLOWER}: flashinfer does not compute bfloat16 on sm_75 "
        "(dtype float16 is computed)",
    ),
    "Volta": (
        Situation("float16", 64, V100),
        "torch",
        f"plain torch on sm_70, {SLOWER}: flashinfer has no kernels for sm_70",
    ),
    "float32": (
        Situation("float32", 128, H200),
        "torch",
        f"plain torch on sm_90, {SLOWER}: flashinfer does not compute float32",
    ),
    "odd heads": (
        Situation("bfloat16", 80, H200),
        "torch",
        f"plain torch on sm_90, {SLOWER}: flashinfer has no kernels for heads of 80",
    ),
    "not installed": (
        Situation("bfloat16", 128, H200, flashinfer=FlashinferState("flashinfer is not installed")),
        "torch",
        f"plain torch on sm_90, {SLOWER}: flashinfer is not installed",
    ),
    "windows on a CPU": (
        Situation("bfloat16", 64, native_lacks="sliding windows and attention sinks", **KERNELS),
        "torch",
        "plain torch: the kernels do not compute sliding windows and attention sinks",
    ),
    "windows on a GPU": (
        Situation("bfloat16", 64, H200, native_lacks="sliding windows"),
        "flashinfer",
        "flashinfer for sm_90",
    ),
    "sinks on a GPU": (
        Situation("bfloat16", 64, H200, sinks=True),
        "flashinfer",
        "flashinfer for sm_90; FA2 computes all prompts, since FA3 is not built with sinks",
    ),
    "AMD": (
        Situation("bfloat16", 128, GpuKind("AMD", (9, 4))),
        "torch",
        "plain torch on AMD (nobody has run this engine on GPUs of AMD), "
        f"{SLOWER}: it computes on NVIDIA's GPUs",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_fastest_that_can_is_chosen_and_the_log_says_why(name: str) -> None:
    situation, wanted, message = CHOICES[name]
    choice = choose_attention(situation)
    assert (choice.name, choice.message) == (wanted, message)


@pytest.mark.parametrize("name", CHOICES)
def test_torch_can_be_asked_for_everywhere(name: str) -> None:
    choice = choose_attention(CHOICES[name][0], "torch")
    assert choice.name == "torch"
    assert choice.message.endswith(", as attentionBackend asks for")


REFUSED: list[tuple[str, AttentionBackend, str]] = [
    ("a CPU", "flashinfer", "auto, native or torch (flashinfer: it computes on NVIDIA's GPUs)"),
    ("no kernels", "native", "auto or torch (native: _native.so was not built)"),
    ("a GPU", "native", "auto, flashinfer or torch (native: it computes on CPUs)"),
    ("AMD", "flashinfer", "auto or torch (flashinfer: it computes on NVIDIA's GPUs)"),
    ("float32", "flashinfer", "auto or torch (flashinfer: flashinfer does not compute float32)"),
]


@pytest.mark.parametrize(("name", "wanted", "allowed"), REFUSED)
def test_one_that_cannot_is_refused_by_key_and_value(
    name: str, wanted: AttentionBackend, allowed: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        choose_attention(CHOICES[name][0], wanted)
    assert str(caught.value) == (f'attentionBackend: "{wanted}" is not allowed; allowed: {allowed}')


NOTHING_BUILT = FlashinferState(to_compile=5, fa3_missing="fa3 (not built ahead)", compiler=True)
WITHOUT_FA3 = FlashinferState(fa3_missing="fa3 (not built ahead)")
COMPILES = "modules were not built ahead: nvcc compiles them, minutes each"


@pytest.mark.parametrize(
    ("gpu", "state", "wanted", "prefill", "remarks"),
    [
        (H200, FlashinferState(), "auto", "auto", ""),
        (A100, FlashinferState(), "auto", "fa2", ""),
        (H200, FlashinferState(), "flashinfer-fa2", "fa2", ""),
        (H200, FlashinferState(), "flashinfer-fa3", "fa3", ""),
        (H200, WITHOUT_FA3, "auto", "fa2",
         "; FA2 computes all prompts, since FA3 lacks fa3 (not built ahead)"),
        (H200, NOTHING_BUILT, "flashinfer-fa2", "fa2", f"; 5 {COMPILES}"),
        (H200, NOTHING_BUILT, "flashinfer-fa3", "fa3", f"; 6 {COMPILES}"),
    ],
)  # fmt: skip
def test_prompts_are_computed_by_what_is_built_or_asked_for(
    gpu: GpuKind, state: FlashinferState, wanted: AttentionBackend, prefill: str, remarks: str
) -> None:
    choice = choose_attention(Situation("bfloat16", 128, gpu, flashinfer=state), wanted)
    assert choice.prefill == prefill
    asked = ", as attentionBackend asks for" if wanted != "auto" else ""
    assert choice.message == f"flashinfer for {gpu}{asked}{remarks}"


def test_bfloat16_is_computed_from_the_architecture_on_that_advice_names() -> None:
    capability = divmod(accelerators.BFLOAT16_FROM, 10)
    on, below = (
        choose_attention(Situation("bfloat16", 128, GpuKind("NVIDIA", each))).name
        for each in (capability, (capability[0] - 1, 9))
    )
    assert (on, below) == ("flashinfer", "torch")


@pytest.mark.parametrize(
    ("gpu", "obstacle"), [(H200, "fa3 (not built ahead)"), (A100, "FA3 has no kernels for sm_80")]
)
def test_fa3_is_refused_where_it_cannot_be_had(gpu: GpuKind, obstacle: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        choose_attention(Situation("bfloat16", 128, gpu, flashinfer=WITHOUT_FA3), "flashinfer-fa3")
    assert str(caught.value) == (
        'attentionBackend: "flashinfer-fa3" is not allowed; allowed: auto, flashinfer or torch '
        f"(flashinfer-fa3: {obstacle})"
    )


def test_fa2_alone_reads_pages_of_8_bits_and_computes_sinks() -> None:
    situation = Situation("bfloat16", 128, H200, fp8_pages=True)
    choice = choose_attention(situation)
    assert (choice.name, choice.prefill) == ("flashinfer", "fa2")
    told = "FA2 computes all prompts, since FA3 does not read pages of 8 bits (kvCacheDtype)"
    assert choice.message == f"flashinfer for sm_90; {told}"
    with pytest.raises(InvalidConfigError, match=r"flashinfer-fa3: FA3 does not read pages of 8"):
        choose_attention(situation, "flashinfer-fa3")
    with pytest.raises(InvalidConfigError, match=r"flashinfer-fa3: FA3 is not built with sinks"):
        choose_attention(CHOICES["sinks on a GPU"][0], "flashinfer-fa3")
    assert choose_attention(Situation("bfloat16", 128, A100, fp8_pages=True)).message == (
        "flashinfer for sm_80"
    )
