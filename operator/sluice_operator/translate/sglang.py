"""SGLang's flags (`python -m sglang.launch_server`), as of 0.5."""

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

POLICIES: Final = ("fcfs", "lpm", "random", "dfs-weight", "lof", "priority", "routing-key")
"""Those of SGLang's that have the same name and meaning here."""

FLAGS: Final = (
    Flag(("model-path", "model"), "model.uri", "where the weights are", model_uri),
    Flag(("served-model-name",), "model.name", "the name in the OpenAI API"),
    Flag(("revision",), "model.revision", "branch, tag or commit of a hub model"),
    Flag(("dtype",), "engine.dtype", "type of weights and activations", DTYPES),
    Flag(("kv-cache-dtype",), "engine.kvCacheDtype", "type of the KV cache", KV_DTYPES),
    Flag(
        ("context-length",),
        "engine.contextLength",
        "most tokens of prompt and answer together",
        number,
    ),
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
        ("max-running-requests",),
        "engine.maxRunningRequests",
        "most requests that run at once",
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
        ("mem-fraction-static",),
        "engine.memoryFraction",
        "share of the device's memory for weights and KV pool",
        fraction,
    ),
    Flag(("page-size",), "engine.pageSize", "tokens in one page of the KV pool", number),
    Flag(
        ("cuda-graph-max-bs",),
        "engine.cudaGraphMaxBatch",
        "largest decode batch that is captured as a CUDA graph",
        number,
    ),
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
    switch("disable-radix-cache", "engine.prefixCache", False, "no prefix is kept"),
    switch("disable-overlap-schedule", "engine.overlap", False, "scheduling waits for the step"),
    Flag(
        ("tp-size", "tensor-parallel-size", "tp"),
        "engine.tensorParallelSize",
        "GPUs that share each layer; the pool's accelerator.count must be as many",
        number,
    ),
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
    HOST,
    PORT,
)
