"""OpenVINO GenAI's continuous batching on a workload, as `environments.py` asks for it.

Runs in an environment of its own, so it imports nothing of Sluice. The model is exported first,
with a tokenizer that only has to exist: prompts are token ids. A workload may have `weights`
(int8_asym or int8_sym: compressed by NNCF), and `exported`, the folder where another run finds the
exported model. With `steps`, that number of steps is timed in which all prompts decode. With
`one_by_one`, prompts alone are timed.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import openvino
import openvino_genai
from asked import answer, workload
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig, OVWeightQuantizationConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CACHE_GIB = 1
STEP_TOKENS = 2048


def write_tokenizer(folder: Path) -> None:
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"<{number}>" for number in range(size - len(names))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[-1]).save_pretrained(folder)


def compression(weights: str) -> OVConfig:
    """Every matrix, embeddings among them, with a scale (and a zero) for each output."""
    config = OVWeightQuantizationConfig(bits=8, sym=weights == "int8_sym")
    return OVConfig(quantization_config=config)


def export(model: Path, target: Path, weights: str | None) -> None:
    """Writes the exported model into `target`; `model` stays as it is."""
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        for file in model.iterdir():
            if file.is_file():
                (own / file.name).symlink_to(file)
        write_tokenizer(own)
        options = {"ov_config": compression(weights)} if weights else {}
        task = "text-generation-with-past"
        main_export(str(own), str(target), task=task, convert_tokenizer=True, **options)


def pipeline(model: Path, threads: int) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.dynamic_split_fuse = True
    options = {"INFERENCE_NUM_THREADS": threads}
    return openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", options)


def settings(answer_tokens: int, temperature: float) -> openvino_genai.GenerationConfig:
    """Greedy or sampled answers; `temperature` 0: the likeliest token."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = answer_tokens
    config.ignore_eos, config.eos_token_id = True, -1
    if temperature > 0:
        config.do_sample, config.temperature = True, temperature
    return config


def requests(work: Any, shift: int) -> list[openvino.Tensor]:
    return [openvino.Tensor(numpy.array([prompt]) + shift) for prompt in work["prompts"]]


Prepared = Callable[[int], Callable[[], int]]


def whole_answers(engine: openvino_genai.ContinuousBatchingPipeline, work: Any) -> Prepared:
    """Times all requests at once, from the first to the last token."""
    answers = [settings(tokens, work["temperature"]) for tokens in work["answers"]]

    def prepared(shift: int) -> Callable[[], int]:
        prompts = requests(work, shift)

        def run() -> int:
            results = engine.generate(prompts, answers)
            return sum(len(result.m_generation_ids[0]) for result in results)

        return run

    return prepared


def decode_steps(engine: openvino_genai.ContinuousBatchingPipeline, work: Any) -> Prepared:
    """Times steps in which all prompts decode; prompts are computed before, and the rest of the
    answers afterwards."""
    steps = work["steps"]

    def prepared(shift: int) -> Callable[[], int]:
        while engine.has_non_finished_requests():
            engine.step()
        prompts, config = requests(work, shift), settings(steps + 2, 0.0)
        handles = [engine.add_request(i, prompt, config) for i, prompt in enumerate(prompts)]
        made = [0] * len(handles)

        def step() -> int:
            engine.step()
            before = sum(made)
            for i, handle in enumerate(handles):
                while handle.can_read():
                    made[i] += sum(len(output.generated_ids) for output in handle.read().values())
            return sum(made) - before

        while not all(made):
            step()
        return lambda: sum(step() for _ in range(steps))

    return prepared


def prompts_alone(engine: openvino_genai.ContinuousBatchingPipeline, work: Any) -> Prepared:
    """Times prompts, one after the other; the tokens counted are theirs."""
    config = settings(1, 0.0)

    def prepared(shift: int) -> Callable[[], int]:
        prompts = requests(work, shift)

        def run() -> int:
            for prompt in prompts:
                engine.generate([prompt], [config])
            return sum(map(len, work["prompts"]))

        return run

    return prepared


def main() -> None:
    work = workload()
    with tempfile.TemporaryDirectory() as name:
        exported = Path(work.get("exported", f"{name}/openvino"))
        if not exported.exists():
            export(Path(work["model"]), exported, work.get("weights"))
        engine = pipeline(exported, work["threads"])
    if "steps" in work:
        answer(decode_steps(engine, work))
    elif work.get("one_by_one"):
        answer(prompts_alone(engine, work))
    else:
        answer(whole_answers(engine, work))


if __name__ == "__main__":
    main()
