"""Random LoRA adapters as PEFT writes them, and PEFT as the oracle of what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.runtime.agreement.oracle import Oracle

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def write_adapter(model: Path, folder: Path, seed: int, **settings: Any) -> Path:
    """Saves an adapter of the model; `settings` are those of `LoraConfig`."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    small: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ALL}
    config = LoraConfig(**small | settings)
    torch.manual_seed(seed)
    adapted = get_peft_model(base, config)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:  # zero in a new adapter, which then does nothing
            torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(str(folder))
    return folder


class AdapterOracle(Oracle):
    """The model with an adapter."""

    def __init__(self, model: Path, adapter: Path) -> None:
        from peft import PeftModel

        super().__init__(model)
        base = self._model
        self._model = PeftModel.from_pretrained(base, adapter).to(torch.float64).eval()
        self._model.set_attn_implementation = base.set_attn_implementation
