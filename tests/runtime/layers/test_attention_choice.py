"""Which backend computes attention where, and what the log and refusals say of it."""

from __future__ import annotations

import pytest
from sluice_contract.config import AttentionBackend
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.layers.attention_choice import Gpu, Situation, choose_attention

H200, V100, T4 = (Gpu("NVIDIA", capability) for capability in ((9, 0), (7, 0), (7, 5)))
KERNELS = {"native_isa": "amx", "native_dtypes": ("float32", "bfloat16")}
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
        Situation("bfloat16", 128, H200, flashinfer_missing="flashinfer is not installed"),
        "torch",
        f"plain torch on sm_90, {SLOWER}: flashinfer is not installed",
    ),
    "AMD": (
        Situation("bfloat16", 128, Gpu("AMD", (9, 4))),
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
