"""OpenVINO GenAI's continuous batching on a workload, as `environments.py` asks for it.

Runs in an environment of its own, so it imports nothing of Sluice. The model is exported first,
with a tokenizer that only has to exist: prompts are token ids.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy
import openvino
import openvino_genai
from asked import answer, workload
from optimum.exporters.openvino import main_export
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CACHE_GIB = 1
STEP_TOKENS = 2048


def export(folder: Path) -> Path:
    """The folder of the exported model, below `folder`."""
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"<{number}>" for number in range(size - len(names))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[-1]).save_pretrained(folder)
    target = folder / "openvino"
    main_export(str(folder), str(target), task="text-generation-with-past", convert_tokenizer=True)
    return target


def pipeline(model: Path, threads: int) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.dynamic_split_fuse = True
    options = {"INFERENCE_NUM_THREADS": threads}
    return openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", options)


def settings(answer_tokens: int, temperature: float) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = answer_tokens
    config.ignore_eos, config.eos_token_id = True, -1
    config.do_sample, config.temperature = True, temperature
    return config


def main() -> None:
    work = workload()
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        for file in Path(work["model"]).iterdir():
            (own / file.name).symlink_to(file)
        engine = pipeline(export(own), work["threads"])
    answers = [settings(tokens, work["temperature"]) for tokens in work["answers"]]

    def prepared(shift: int) -> Callable[[], int]:
        prompts = [openvino.Tensor(numpy.array([prompt]) + shift) for prompt in work["prompts"]]

        def run() -> int:
            results = engine.generate(prompts, answers)
            return sum(len(result.m_generation_ids[0]) for result in results)

        return run

    answer(prepared)


if __name__ == "__main__":
    main()
