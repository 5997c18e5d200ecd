"""SGLang's flags (`python -m sglang.launch_server`), as of 0.5."""

from __future__ import annotations

from typing import Final

from sluice_operator.cli.translate.rows import (
    COMMON,
    HOST_CACHE,
    SPECULATION,
    Flag,
    fraction,
    gigabytes,
    model_uri,
    number,
    one_of,
    sets,
    switch,
)

POLICIES: Final = ("fcfs", "lpm", "random", "dfs-weight", "lof", "priority", "routing-key")
"""Those of SGLang's that have the same name and meaning here."""
EVICTIONS: Final = ("lru", "lfu", "fifo", "slru")
"""Likewise."""

FLAGS: Final = (
    *COMMON,
    sets("model.uri", "model-path", "model"),
    sets("engine.contextLength", "context-length"),
    sets("engine.maxRunningRequests", "max-running-requests"),
    sets("engine.memoryFraction", "mem-fraction-static"),
    sets("engine.pageSize", "page-size"),
    sets("engine.tensorParallelSize", "tp-size", "tensor-parallel-size", "tp"),
    Flag(
        ("chunked-prefill-size",),
        "engine.chunkSize",
        "tokens of one step, those of running requests included; -1 turns chunks off",
        number,
    ),
    switch(
        "enable-mixed-chunk", "engine.mixedChunk", True, "running requests join chunks; the default"
    ),
    Flag(
        ("max-prefill-tokens",),
        "engine.maxPrefillTokens",
        "most prompt tokens in one step",
        number,
    ),
    Flag(
        ("max-queued-requests",),
        "engine.maxQueuedRequests",
        "most requests that wait; one more is answered 429",
        number,
    ),
    Flag(("max-total-tokens",), "engine.kvPoolTokens", "size of the KV pool", number),
    Flag(
        ("cuda-graph-max-bs",),
        "engine.cudaGraphMaxBatch",
        "largest decode batch that is captured as a CUDA graph",
        number,
    ),
    switch("disable-cuda-graph", "engine.cudaGraphMaxBatch", 0, "no CUDA graphs"),
    Flag(
        ("schedule-policy",),
        "engine.schedulingPolicy",
        "order of admission",
        one_of({name: name for name in POLICIES}),
    ),
    switch(
        "enable-priority-scheduling",
        "engine.schedulingPolicy",
        "priority",
        "the largest priority goes first",
    ),
    Flag(
        ("priority-scheduling-preemption-threshold",),
        "engine.priorityThreshold",
        "difference in priority above which a request preempts",
        number,
    ),
    Flag(
        ("schedule-conservativeness",),
        "engine.scheduleConservativeness",
        "factor on what admission reserves for answers",
        fraction,
    ),
    Flag(
        ("attention-backend",),
        "engine.attentionBackend",
        "what computes attention",
        one_of({"flashinfer": "flashinfer", "torch_native": "torch"}),
    ),
    switch("disable-radix-cache", "engine.prefixCache", False, "no prefix is kept"),
    Flag(
        ("radix-eviction-policy",),
        "engine.prefixEvictionPolicy",
        "which cached prefixes go first",
        one_of({name: name for name in EVICTIONS}),
    ),
    switch("disable-overlap-schedule", "engine.overlap", False, "scheduling waits for the step"),
    Flag(
        ("disaggregation-mode",),
        "mode",
        "one service has both pools: translate the flags of one side, then size spec.pools",
        one_of({"null": "Mixed", "prefill": "Disaggregated", "decode": "Disaggregated"}),
    ),
    Flag(
        ("disaggregation-transfer-backend",),
        "engine.kvTransfer.backend",
        "how the KV cache is handed over",
        one_of({"mooncake": "Mooncake"}),
    ),
    Flag(
        ("disaggregation-ib-device",),
        "engine.kvTransfer.device",
        "the RDMA device, which asks for rdma too",
        also={"engine.kvTransfer.protocol": "rdma"},
    ),
    Flag(
        ("disaggregation-bootstrap-port",),
        "engine.kvTransfer.bootstrapPort",
        "rendezvous port of prefill engines",
        number,
    ),
    Flag(
        ("speculative-algorithm",),
        "engine.speculation.method",
        SPECULATION,
        one_of({"NGRAM": "NGram", "STANDALONE": "Draft", "EAGLE3": "Eagle"}),
    ),
    Flag(
        ("speculative-draft-model-path", "speculative-draft-model"),
        "engine.speculation.draft.uri",
        "where the weights of what drafts are",
        model_uri,
    ),
    Flag(
        ("speculative-num-draft-tokens",),
        "engine.speculation.tokens",
        "most drafts of a request in one step",
        number,
    ),
    switch(
        "enable-hierarchical-cache",
        "",
        None,
        "nothing to set: it is on where --hicache-size gives its memory",
    ),
    Flag(("hicache-size",), "engine.hostCache.memory", HOST_CACHE, gigabytes("G")),
    Flag(
        ("reasoning-parser",),
        "engine.reasoningFormat",
        "how the model writes its reasoning; found out from its chat template when left out",
        one_of({"deepseek-r1": "deepseek-r1", "qwen3": "qwen3", "qwen3-thinking": "qwen3"}),
    ),
    Flag(
        ("tool-call-parser",),
        "engine.toolCallFormat",
        "how the model writes tool calls; found out from its chat template when left out",
        one_of(
            {
                "hermes": "hermes",
                "llama3": "llama3-json",
                "mistral": "mistral",
                "qwen": "hermes",
                "qwen25": "hermes",
                "qwen3_coder": "qwen3-coder",
            }
        ),
    ),
)
