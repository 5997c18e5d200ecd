"""vLLM's flags (`vllm serve`), as of 0.19."""

from __future__ import annotations

from typing import Final

from sluice_operator.translate.rows import HOST, PORT, Flag, switch
from sluice_operator.translate.values import (
    DTYPES,
    KV_DTYPES,
    fraction,
    model_uri,
    number,
    one_of,
)

FLAGS: Final = (
    Flag(("model",), "model.uri", "where the weights are", model_uri),
    Flag(("served-model-name",), "model.name", "the name in the OpenAI API"),
    Flag(("revision",), "model.revision", "branch, tag or commit of a hub model"),
    Flag(("dtype",), "engine.dtype", "type of weights and activations", DTYPES),
    Flag(("kv-cache-dtype",), "engine.kvCacheDtype", "type of the KV cache", KV_DTYPES),
    Flag(
        ("max-model-len",),
        "engine.contextLength",
        "most tokens of prompt and answer together",
        number,
    ),
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
    Flag(("max-num-seqs",), "engine.maxRunningRequests", "most requests that run at once", number),
    Flag(
        ("gpu-memory-utilization",),
        "engine.memoryFraction",
        "share of the device's memory for weights and KV pool",
        fraction,
    ),
    Flag(("block-size",), "engine.pageSize", "tokens in one page of the KV pool", number),
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
    Flag(
        ("tensor-parallel-size", "tp"),
        "engine.tensorParallelSize",
        "GPUs that share each layer; the pool's accelerator.count must be as many",
        number,
    ),
    HOST,
    PORT,
)
