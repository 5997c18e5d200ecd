"""SGLang's flags (`python -m sglang.launch_server`), as of 0.5."""

from __future__ import annotations

from typing import Final

from sluice_operator.cli.translate.rows import (
    COMMON,
    HOST_CACHE,
    ONE_NODE,
    SPECULATION,
    TWO_POOLS,
    Flag,
    NotCarriedError,
    adapters,
    gigabytes,
    largest,
    lost,
    model_uri,
    needless,
    number,
    one_of,
    only_default,
    only_one,
    percent,
    sets,
    switch,
)

POLICIES: Final = ("fcfs", "lpm", "random", "dfs-weight", "lof", "priority")
"""SGLang's policies that have the same name and meaning here."""
EVICTIONS: Final = ("lru", "lfu", "fifo", "slru")
"""SGLang's eviction policies that have the same name and meaning here."""


def drafts(text: str) -> int:
    """Number of drafts. SGLang also counts the token that is verified before them: its 4 are 3
    drafts."""
    if (tokens := number(text)) < 2:
        raise ValueError("a whole number, at least 2")
    return tokens - 1


def attention(text: str) -> str:
    """SGLang's kernels → ours."""
    ours = {"flashinfer": "flashinfer", "torch_native": "torch"}
    if text not in ours:
        raise NotCarriedError("other kernels are here, and the fastest of them compute it")
    return ours[text]


BACKENDS: Final = {
    "mooncake": {"backend": "Mooncake"},
    "mooncake_tcp": {"backend": "Mooncake", "protocol": "tcp"},
    "nixl": {"backend": "NIXL", "protocol": "rdma"},
}

FLAGS: Final = (
    *COMMON,
    sets("model.uri", "model-path", "model"),
    sets("engine.contextLength", "context-length"),
    sets("engine.maxRunningRequests", "max-running-requests"),
    sets("engine.memoryPercent", "mem-fraction-static"),
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
        ("cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
        "engine.cudaGraphMaxBatch",
        "largest decode batch that is captured as a CUDA graph",
        number,
        yields=True,
    ),
    Flag(
        ("cuda-graph-bs", "cuda-graph-bs-decode"),
        "engine.cudaGraphMaxBatch",
        "largest decode batch that is captured as a CUDA graph",
        largest,
        many=True,
        yields=True,
    ),
    switch("disable-cuda-graph", "engine.cudaGraphMaxBatch", 0, "no CUDA graphs"),
    Flag(
        ("schedule-policy",),
        "engine.schedulingPolicy",
        "order of admission",
        one_of({name: name for name in POLICIES}),
        yields=True,
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
        "engine.reservePercent",
        "percent of what admission reserves for answers",
        percent,
    ),
    Flag(
        ("attention-backend",),
        "engine.attentionBackend",
        "what computes attention",
        attention,
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
        TWO_POOLS,
        "one service has both pools: translate the flags of one side, then size spec.prefill too",
        one_of({"null": False, "prefill": True, "decode": True}),
    ),
    Flag(
        ("disaggregation-transfer-backend",),
        "engine.kvTransfer",
        "how the KV cache is handed over; NIXL reads over RDMA, Mooncake over TCP unless protocol "
        "is rdma",
        one_of(BACKENDS),
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
        "most drafts of a request in one step; SGLang counts the verified token before them, too",
        drafts,
        yields=True,
    ),
    Flag(
        ("speculative-num-steps",),
        "engine.speculation.tokens",
        "most drafts of a request in one step",
        number,
    ),
    Flag(
        ("speculative-eagle-topk",),
        "",
        "as it is here",
        only_default("1", lost="drafts are a chain, not a tree"),
    ),
    Flag(
        ("enable-hierarchical-cache",),
        "",
        "it is on where --hicache-size gives its memory",
        None,
        needs="engine.hostCache.memory",
    ),
    lost("hicache-ratio", says="engine.hostCache.memory is a size: give --hicache-size"),
    lost(
        "hicache-storage-backend", "hicache-storage-prefetch-policy",
        "hicache-storage-backend-extra-config",
        says="engine.hostCache.disk is the only place beside memory",
    ),
    needless(
        "hicache-write-policy", "hicache-io-backend", "hicache-mem-layout",
        says="not needed: a prefix is saved when it is evicted",
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
    Flag(
        ("lora-paths",),
        "model.adapters",
        "LoRA adapters that are served beside the model",
        adapters,
        many=True,
    ),
    Flag(("max-loras-per-batch",), "engine.maxLorasPerBatch", "adapters that run at once", number),
    Flag(("max-lora-rank",), "engine.maxLoraRank", "largest rank of an adapter", number),
    needless(
        "enable-lora", "enable-lora-overlap-loading",
        says="nothing to set: model.adapters are served",
        takes=False,
    ),
    needless(
        "lora-backend", "lora-eviction-policy", "max-lora-chunk-size",
        says="no meaning here: adapters have one backend",
    ),
    lost("lora-target-modules", says="an adapter's own modules are used", many=True),
    lost("max-loaded-loras", says="all of model.adapters are loaded"),
    needless(
        "enable-metrics", "enable-cache-report", "enable-metrics-for-all-schedulers",
        "collect-tokens-histogram",
        says="always on",
        takes=False,
    ),
    needless(
        "skip-server-warmup", "disable-cuda-graph-padding", "disable-custom-all-reduce",
        "enable-nccl-nvls", "enable-symm-mem", "enable-torch-symm-mem", "enable-mscclpp",
        "enable-p2p-check", "disable-outlines-disk-cache", "enable-tokenizer-batch-encode",
        "disable-tokenizer-batch-decode", "disable-flashinfer-autotune", "sleep-on-idle",
        "disable-piecewise-cuda-graph", "enable-torch-compile", "enable-cudagraph-gc",
        "enable-flashinfer-allreduce-fusion", "show-time-cost", "disable-hybrid-swa-memory",
        "incremental-streaming-output", "enable-request-time-stats-logging", "log-requests",
        says="no meaning here: it changes no answer",
        takes=False,
    ),
    needless(
        "log-level", "log-level-http", "log-requests-level", "log-requests-format",
        "log-requests-target", "decode-log-interval", "watchdog-timeout", "soft-watchdog-timeout",
        "dist-timeout", "base-gpu-id", "gpu-id-step", "sampling-backend", "moe-runner-backend",
        "fp8-gemm-backend", "fp4-gemm-backend", "torch-compile-max-bs", "mm-attention-backend",
        "num-continuous-decode-steps", "speculative-draft-attention-backend",
        "speculative-attention-mode", "piecewise-cuda-graph-max-tokens", "tokenizer-worker-num",
        "triton-attention-num-kv-splits", "warmups", "weight-version", "load-balance-method",
        "speculative-ngram-match-type", "speculative-ngram-capacity",
        "speculative-ngram-max-trie-depth", "speculative-ngram-min-bfs-breadth",
        "speculative-ngram-max-bfs-breadth", "disaggregation-prefill-pp",
        "disaggregation-decode-tp", "disaggregation-decode-dp", "swa-full-tokens-ratio",
        says="no meaning here: it changes no answer",
    ),
    needless("random-seed", says="no meaning here: each request may bring its seed"),
    needless(
        "bucket-time-to-first-token", "bucket-inter-token-latency", "bucket-e2e-request-latency",
        "prompt-tokens-buckets", "generation-tokens-buckets",
        says="no meaning here: buckets are fixed",
        many=True,
    ),
    Flag(
        ("grammar-backend",),
        "",
        "as it is here",
        only_default("llguidance", lost="llguidance checks structured output"),
    ),
    Flag(
        ("sampling-defaults",),
        "",
        "as it is here",
        only_default("model", lost="generation_config.json has the defaults"),
    ),
    Flag(("moe-dp-size", "moe-data-parallel-size"), "", "as it is here", only_one(ONE_NODE)),
    Flag(("attn-cp-size", "attention-context-parallel-size"), "", "as it is here",
         only_one(ONE_NODE)),
    Flag(
        ("stream-interval",),
        "",
        "as it is here",
        only_default("1", lost="a stream has an event for every step"),
    ),
    lost(
        "ep-size", "expert-parallel-size", "ep", "moe-a2a-backend", "deepep-mode",
        "moe-dense-tp-size", "ep-num-redundant-experts", "ep-dispatch-algorithm",
        says="experts are divided among an engine's GPUs as other layers are",
    ),
    lost(
        "prefill-attention-backend", "decode-attention-backend",
        says="engine.attentionBackend is one for both",
    ),
    lost(
        "schedule-low-priority-values-first",
        says="the largest priority goes first: clients have to turn theirs round",
        takes=False,
    ),
    lost("abort-on-priority-when-disabled", says="a priority is then ignored", takes=False),
    lost("prefill-max-requests", says="engine.maxPrefillTokens bounds a step"),
    lost("quantization-param-path", says="scales of the KV cache are the checkpoint's"),
    lost("speculative-draft-model-revision", says="write hf://org/name@revision as its uri"),
    lost(
        "speculative-token-map", "speculative-draft-model-quantization",
        "speculative-draft-load-format",
        says="the draft model is loaded as it is",
    ),
    lost(
        "speculative-accept-threshold-single", "speculative-accept-threshold-acc",
        says="drafts never change an answer",
    ),
    lost(
        "json-model-override-args", "preferred-sampling-params", "model-impl",
        "constrained-json-whitespace-pattern",
        says="the model is served as its files say",
    ),
    lost(
        "constrained-json-disable-any-whitespace", "enable-fp32-lm-head", "enable-nan-detection",
        "enable-deterministic-inference",
        says="no setting of that kind",
        takes=False,
    ),
    lost("torchao-config", "modelopt-quant", says="not done: Sluice quantises no weights"),
    lost("quantize-and-serve", says="not done: Sluice quantises no weights", takes=False),
    lost("enable-lmcache", says="engine.hostCache keeps prefixes, not LMCache", takes=False),
    lost("enable-trace", says="tracing.endpoint names the collector", takes=False),
    lost("is-embedding", "enable-multimodal", says="text is generated, nothing else", takes=False),
    lost("skip-tokenizer-init", says="requests are tokenized here", takes=False),
    Flag(
        ("admin-api-key",), "", "operations are for the operator alone", is_secret=True, lost=True
    ),
)  # fmt: skip
