"""Writes the released model's folder: `python -m e2e.model.dequantise GGUF FOLDER [DTYPE]`.

Weights (in float32 unless DTYPE says otherwise), config, tokenizer and chat template, as
transformers reads them from the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def dequantise(file: Path, folder: Path, dtype: str = "float32") -> None:
    quiet: Any = logging.disable_progress_bar
    quiet()
    source: Any = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=getattr(torch, dtype))
    # With these, transformers would take the weights for the file's quantised ones, which it cannot
    # write.
    del model.hf_quantizer, model.config.quantization_config
    # As the model's card samples; the file does not say it.
    model.generation_config.update(do_sample=True, temperature=0.2, top_p=0.9)
    model.save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
