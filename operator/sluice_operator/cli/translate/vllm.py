"""vLLM's flags (`vllm serve`), as of 0.19."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice_operator.cli.translate.rows import (
    COMMON,
    HOST_CACHE,
    SPECULATION,
    TWO_POOLS,
    Flag,
    NotCarriedError,
    Partly,
    adapters,
    gigabytes,
    json_object,
    largest,
    lost,
    model_uri,
    needless,
    number,
    one_of,
    only_default,
    sets,
    switch,
)

METHODS: Final = one_of({"ngram": "NGram", "draft_model": "Draft", "eagle3": "Eagle"})


KNOWN: Final = frozenset({"method", "model", "num_speculative_tokens"})
CONNECTORS: Final[Mapping[str, dict[str, str]]] = {
    "NixlConnector": {"backend": "NIXL", "protocol": "rdma"},
    "MooncakeConnector": {"backend": "Mooncake"},
}
ROLES: Final = ("kv_producer", "kv_consumer", "kv_both")
PROTOCOL: Final = "mooncake_protocol"


def speculation(text: str) -> Partly:
    """The JSON of --speculative-config."""
    try:
        settings = json_object(text)
        method = METHODS(str(settings["method"]))
    except (ValueError, KeyError):
        methods = "ngram, draft_model or eagle3"
        raise ValueError(f"a JSON object with method {methods}") from None
    ours: dict[str, Any] = {"method": method}
    if "num_speculative_tokens" in settings:
        ours["tokens"] = settings["num_speculative_tokens"]
    if "model" in settings and method != "NGram":
        ours["draft"] = {"uri": model_uri(str(settings["model"]))}
    return Partly(ours, tuple(f"{key} has no setting" for key in settings if key not in KNOWN))


def kv_transfer(text: str) -> Partly:
    """The JSON of --kv-transfer-config. Its role is that of one pool, while a service has both."""
    settings = json_object(text)
    connector, role = settings.get("kv_connector"), settings.get("kv_role", "kv_both")
    if not isinstance(connector, str):
        raise ValueError("a JSON object with kv_connector")
    if role not in ROLES:
        raise ValueError(f"kv_role {', '.join(ROLES)}")
    if connector not in CONNECTORS:
        raise NotCarriedError(
            f"{connector} is not here: {' and '.join(CONNECTORS)} hand over; engine.hostCache "
            "keeps prefixes"
        )
    ours = dict(CONNECTORS[connector])
    extra = settings.pop("kv_connector_extra_config", None) or {}
    if connector == "MooncakeConnector" and extra.get(PROTOCOL) in ("tcp", "rdma"):
        ours["protocol"] = extra.pop(PROTOCOL)
    keys = [key for key in (*settings, *extra) if key not in ("kv_connector", "kv_role")]
    return Partly(ours, tuple(f"{key} has no setting" for key in keys))


def attention(text: str) -> str:
    """vLLM's kernels → ours."""
    ours = {"FLASHINFER": "flashinfer", "TORCH_SDPA": "torch"}
    if text.upper() not in ours:
        raise NotCarriedError("other kernels are here, and the fastest of them compute it")
    return ours[text.upper()]


FLAGS: Final = (
    *COMMON,
    sets("model.uri", "model", "model-tag"),
    sets("engine.contextLength", "max-model-len"),
    sets("engine.maxRunningRequests", "max-num-seqs"),
    sets("engine.memoryPercent", "gpu-memory-utilization"),
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
    switch("no-enforce-eager", "", None, "nothing to set: CUDA graphs are on"),
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
    Flag(
        ("kv-transfer-config",),
        "engine.kvTransfer",
        "how the KV cache is handed over; one service has both sides: size spec.prefill too",
        kv_transfer,
        also={TWO_POOLS: True},
    ),
    Flag(
        ("lora-modules",),
        "model.adapters",
        "LoRA adapters that are served beside the model",
        adapters,
        many=True,
    ),
    Flag(("max-loras",), "engine.maxLorasPerBatch", "adapters that run at once", number),
    Flag(("max-lora-rank",), "engine.maxLoraRank", "largest rank of an adapter", number),
    Flag(
        ("cudagraph-capture-sizes", "cuda-graph-sizes"),
        "engine.cudaGraphMaxBatch",
        "largest decode batch that is captured as a CUDA graph",
        largest,
        many=True,
        yields=True,
    ),
    Flag(
        ("max-cudagraph-capture-size",),
        "engine.cudaGraphMaxBatch",
        "largest decode batch that is captured as a CUDA graph",
        number,
        yields=True,
    ),
    Flag(("attention-backend",), "engine.attentionBackend", "what computes attention", attention),
    needless(
        "enable-lora", "enable-prompt-tokens-details", "disable-log-requests", "disable-log-stats",
        "no-enable-log-requests", "enable-log-requests", "disable-uvicorn-access-log",
        "disable-custom-all-reduce", "disable-frontend-multiprocessing", "disable-cascade-attn",
        "enable-server-load-tracking", "enable-reasoning", "fully-sharded-loras", "enable-dbo",
        "disable-fastapi-docs", "kv-cache-metrics", "enable-log-outputs",
        "enable-flashinfer-autotune", "use-tqdm-on-load", "enable-mfu-metrics",
        says="nothing to set: it is always so, or changes no answer",
        takes=False,
    ),
    needless(
        "uvicorn-log-level", "distributed-executor-backend", "api-server-count", "max-log-len",
        "compilation-config", "cc", "O", "optimization-level", "max-parallel-loading-workers",
        "long-prefill-token-threshold", "max-num-partial-prefills",
        "max-long-partial-prefills", "mm-processor-cache-gb", "all2all-backend",
        "otlp-service-name", "renderer-num-workers", "moe-backend",
        "lora-extra-vocab-size", "performance-mode", "show-hidden-metrics-for-version",
        "collect-detailed-traces", "prefix-caching-hash-algo", "stream-interval", "max-cpu-loras",
        says="no meaning here: it changes no answer",
    ),
    needless("seed", says="no meaning here: each request may bring its seed"),
    Flag(
        ("guided-decoding-backend",),
        "",
        "as it is here",
        only_default("auto", "guidance", lost="llguidance checks structured output"),
    ),
    Flag(
        ("generation-config",),
        "",
        "as it is here",
        only_default("auto", lost="generation_config.json of the model has the defaults"),
    ),
    Flag(
        ("runner", "task"),
        "",
        "as it is here",
        only_default("auto", "generate", lost="text is generated, nothing else"),
    ),
    lost("num-gpu-blocks-override", says="engine.kvPoolTokens is the pool's size in tokens"),
    lost("kv-cache-memory-bytes", "kv-cache-memory", says="engine.kvPoolTokens is in tokens"),
    lost("kv-offloading-backend", says="engine.hostCache has one"),
    lost("calculate-kv-scales", says="scales of the KV cache are the checkpoint's", takes=False),
    lost("disable-sliding-window", says="the model is served as its files say", takes=False),
    lost(
        "hf-overrides", "rope-scaling", "rope-theta", "hf-config-path", "config-format",
        "model-impl", "convert", "code-revision", "override-generation-config",
        "logits-processors", "model-loader-extra-config", "pooler-config",
        says="the model is served as its files say",
    ),
    Flag(
        ("hf-token",), "", "model.tokenSecretRef: a token is in a Secret", is_secret=True, lost=True
    ),
    lost(
        "allowed-origins", "allowed-methods", "allowed-headers",
        says="router.cors.allowedOrigins lists the origins of pages",
    ),
    lost("allow-credentials", says="the router reads no cookies", takes=False),
    lost("middleware", says="no code of others runs in the API process"),
    lost("response-role", "max-logprobs", "default-chat-template-kwargs", says="no such setting"),
    lost(
        "enable-sleep-mode", "return-tokens-as-token-ids", "enable-force-include-usage",
        "enable-prompt-embeds", "enable-tokenizer-info-endpoint", "language-model-only",
        says="no such setting",
        takes=False,
    ),
    lost(
        "limit-mm-per-prompt", "mm-processor-kwargs", "allowed-local-media-path",
        "allowed-media-domains", "media-io-kwargs", "mm-encoder-tp-mode",
        says="requests are text",
    ),
    lost(
        "headless", "data-parallel-hybrid-lb", "data-parallel-external-lb",
        says="the operator starts the engines, and the router spreads requests over them",
        takes=False,
    ),
    lost("structured-outputs-config", says="llguidance checks structured output"),
)  # fmt: skip
