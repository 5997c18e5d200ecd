"""vLLM's flags (`vllm serve`), as of 0.19."""

from __future__ import annotations

import json
from typing import Any, Final

from sluice_operator.cli.translate.rows import (
    COMMON,
    HOST_CACHE,
    SPECULATION,
    Flag,
    gigabytes,
    model_uri,
    needless,
    number,
    one_of,
    sets,
    switch,
)

METHODS: Final = one_of({"ngram": "NGram", "draft_model": "Draft", "eagle3": "Eagle"})


def speculation(text: str) -> dict[str, Any]:
    """Of the JSON of --speculative-config; sizes of n-grams and of the draft's parallelism have no
    setting here."""
    try:
        settings = json.loads(text)
        method = METHODS(str(settings["method"]))
    except (ValueError, KeyError, TypeError):
        methods = "ngram, draft_model or eagle3"
        raise ValueError(f"a JSON object with method {methods}") from None
    ours: dict[str, Any] = {"method": method}
    if "num_speculative_tokens" in settings:
        ours["tokens"] = settings["num_speculative_tokens"]
    if "model" in settings and method != "NGram":
        ours["draft"] = {"uri": model_uri(str(settings["model"]))}
    return ours


FLAGS: Final = (
    *COMMON,
    sets("model.uri", "model"),
    sets("engine.contextLength", "max-model-len"),
    sets("engine.maxRunningRequests", "max-num-seqs"),
    sets("engine.memoryFraction", "gpu-memory-utilization"),
    sets("engine.pageSize", "block-size"),
    sets("engine.tensorParallelSize", "tensor-parallel-size", "tp"),
    switch(
        "enable-chunked-prefill",
        "",
        None,
        "nothing to set: chunks are on unless engine.chunkSize is -1",
    ),
    switch("no-enable-chunked-prefill", "engine.chunkSize", -1, "prompts are not cut"),
    Flag(
        ("max-num-batched-tokens",),
        "engine.chunkSize",
        "tokens of one step, those of running requests included",
        number,
    ),
    switch("enforce-eager", "engine.cudaGraphMaxBatch", 0, "no CUDA graphs"),
    needless(
        "swap-space",
        says="no meaning here: a request that gave its pages up is computed again",
    ),
    Flag(
        ("scheduling-policy", "schedule-policy"),
        "engine.schedulingPolicy",
        "order of admission; mind that Sluice serves the largest priority first, vLLM the smallest",
        one_of({"fcfs": "fcfs", "priority": "priority"}),
    ),
    switch(
        "enable-prefix-caching", "engine.prefixCache", True, "computed prefixes are kept and shared"
    ),
    switch("no-enable-prefix-caching", "engine.prefixCache", False, "no prefix is kept"),
    switch("async-scheduling", "engine.overlap", True, "scheduling runs beside the device's step"),
    switch("no-async-scheduling", "engine.overlap", False, "scheduling waits for the step"),
    Flag(("speculative-config",), "engine.speculation", SPECULATION, speculation),
    Flag(("kv-offloading-size",), "engine.hostCache.memory", HOST_CACHE, gigabytes("Gi")),
    Flag(
        ("tool-call-parser",),
        "engine.toolCallFormat",
        "how the model writes tool calls; found out from its chat template when left out",
        one_of(
            {
                "hermes": "hermes",
                "llama3_json": "llama3-json",
                "mistral": "mistral",
                "qwen3_coder": "qwen3-coder",
                "qwen3_xml": "qwen3-coder",
            }
        ),
    ),
    Flag(
        ("reasoning-parser",),
        "engine.reasoningFormat",
        "how the model writes its reasoning; found out from its chat template when left out",
        one_of({"deepseek_r1": "deepseek-r1", "mistral": "mistral", "qwen3": "qwen3"}),
    ),
    switch(
        "enable-auto-tool-choice",
        "",
        None,
        "nothing to set: the model may choose where its format of calls is known",
    ),
)
