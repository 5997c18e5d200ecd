"""vLLM's CPU build on a workload, as `environments.py` asks for it.

Runs in an environment of its own, so it imports nothing of Sluice. The engine computes in this
process instead of a worker, so that its CPU time is this process's. It is compiled, as by default.
"""

import os
from collections.abc import Callable

from asked import answer, workload

CACHE_GIB = 1
STEP_TOKENS = 2048
MAX_REQUESTS = 256


def main() -> None:
    work = workload()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": str(work["threads"]),
    }
    from vllm import LLM, SamplingParams

    engine = LLM(
        work["model"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=MAX_REQUESTS,
        max_num_batched_tokens=STEP_TOKENS,
        kv_cache_memory_bytes=CACHE_GIB << 30,
    )

    def settings(answer_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=work["temperature"],
            max_tokens=answer_tokens,
            ignore_eos=True,
            detokenize=False,
        )

    def prepared(shift: int) -> Callable[[], int]:
        prompts = [
            {"prompt_token_ids": [token + shift for token in prompt]} for prompt in work["prompts"]
        ]
        answers = [settings(tokens) for tokens in work["answers"]]
        # Runs that fill the prefix cache slow the next ones by a third.
        if not engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps its prefix cache")

        def run() -> int:
            results = engine.generate(prompts, answers, use_tqdm=False)
            return sum(len(result.outputs[0].token_ids) for result in results)

        return run

    prepared(1000)()  # compiles for all sizes of batches
    answer(prepared)


if __name__ == "__main__":
    main()
