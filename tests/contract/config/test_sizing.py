"""Every resolved engine setting says where it came from."""

from __future__ import annotations

import pytest
from sluice_contract.base import ConfigError
from sluice_contract.config.accelerators import Accelerator, requests_in_pool
from sluice_contract.config.engine import (
    DType,
    EngineConfig,
    EngineSettings,
    SloTargets,
    parse_engine_config,
    render_engine_config,
)
from sluice_contract.config.sizing import Source, planned_config, resolve_settings
from sluice_contract.config.supported import ROWS, unsupported
from sluice_contract.error_text import known_keys


@pytest.mark.parametrize(
    ("accelerator", "chunk", "graph", "source"),
    [
        (Accelerator(), 512, 0, Source.GENERAL),
        (Accelerator(product="Tesla-T4", count=1), 2048, 8, Source.PRODUCT),
        (Accelerator(product="NVIDIA-A100-SXM4-40GB", count=1), 4096, 32, Source.PRODUCT),
        (Accelerator(product="NVIDIA-A100-SXM4-40GB", count=4), 4096, 160, Source.PRODUCT),
        (Accelerator(product="NVIDIA-A100-SXM4-80GB", count=1), 8192, 256, Source.PRODUCT),
        (Accelerator(product="NVIDIA-H100-80GB-HBM3", count=8), 8192, 512, Source.PRODUCT),
        (Accelerator(product="NVIDIA-H200", count=1), 8192, 256, Source.PRODUCT),
        (Accelerator(product="NVIDIA-GB200", count=1), 16384, 512, Source.PRODUCT),
        (Accelerator(product="NVIDIA-GeForce-RTX-4090", count=4), 2048, 80, Source.PRODUCT),
        (Accelerator(product="Brand-New", memory_mib=24 * 1024, count=1), 2048, 16, Source.MEMORY),
        (Accelerator(product="Brand-New", memory_mib=48 * 1024, count=4), 4096, 160, Source.MEMORY),
        (Accelerator(memory_mib=288 * 1024, count=1), 16384, 512, Source.MEMORY),
        (Accelerator(product="Brand-New", count=1), 4096, 32, Source.GENERAL),
    ],
)
def test_chunk_and_graph_follow_the_accelerator(
    accelerator: Accelerator, chunk: int, graph: int, source: Source
) -> None:
    resolved = resolve_settings(EngineSettings(), accelerator)
    assert resolved["chunk_size"].value == chunk
    assert resolved["cuda_graph_max_batch"].value == graph
    assert resolved["chunk_size"].source == source


@pytest.mark.parametrize(
    ("accelerator", "percent", "source"),
    [
        (Accelerator(), 85, Source.GENERAL),
        (Accelerator(product="Brand-New", count=1), 85, Source.GENERAL),
        (Accelerator(product="Tesla-T4", count=1), 77, Source.PRODUCT),
        (Accelerator(product="A100-SXM4-40GB", memory_mib=40_960, count=1), 83, Source.MEMORY),
        (Accelerator(product="H100", memory_mib=81_559, count=4), 82, Source.MEMORY),
        (Accelerator(product="NVIDIA-H200", memory_mib=143_771, count=1), 90, Source.MEMORY),
        (Accelerator(product="MI300X", count=8), 86, Source.PRODUCT),
        (Accelerator(memory_mib=4_864, count=1), 50, Source.MEMORY),
    ],
)
def test_memory_follows_the_accelerator(
    accelerator: Accelerator, percent: int, source: Source
) -> None:
    """Reserved: 1.5 MiB a token of the chunk, 2 MiB a row of the graphs, 128 MiB a GPU, 512 MiB."""
    resolved = resolve_settings(EngineSettings(), accelerator)
    assert resolved["memory_percent"].value == percent
    assert resolved["memory_percent"].source == source
    assert resolved["overlap"].value is not accelerator.is_cpu


def test_on_gpus_running_requests_are_left_to_the_engine_unless_the_user_sets_them() -> None:
    h200 = Accelerator(product="NVIDIA-H200", count=1)
    assert "max_running_requests" not in resolve_settings(EngineSettings(), h200)
    chosen = resolve_settings(EngineSettings(max_running_requests=9), h200)["max_running_requests"]
    assert (chosen.value, chosen.source) == (9, Source.USER)
    assert resolve_settings(EngineSettings(), Accelerator())["max_running_requests"].value == 256


@pytest.mark.parametrize(
    ("pool_tokens", "graph_batch", "requests"),
    [
        (0, 0, 256),
        (0, 512, 512),
        (300_000, 256, 288),  # 292.97, of which 18 whole tiles of 16
        (300_000, 300, 300),
        (4_096 * 1024 - 1, 256, 4_080),
        (4_096 * 1024, 256, 4_096),
        (100_000_000, 256, 4_096),
    ],
)
def test_requests_follow_the_pool_between_two_bounds(
    pool_tokens: int, graph_batch: int, requests: int
) -> None:
    assert requests_in_pool(pool_tokens, graph_batch) == requests


def test_the_users_value_wins_and_says_so() -> None:
    resolved = resolve_settings(EngineSettings(chunk_size=64), Accelerator(product="NVIDIA-H200"))
    assert (resolved["chunk_size"].value, resolved["chunk_size"].source) == (64, Source.USER)
    assert resolved["page_size"].source == Source.GENERAL


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (EngineSettings(chunk_size=8, page_size=16), "chunkSize"),
        (EngineSettings(chunk_size=64, min_prefill_tokens=65), "minPrefillTokens: 65"),
        (EngineSettings(max_prefill_tokens=64, min_prefill_tokens=65), "minPrefillTokens: 65"),
        (
            EngineSettings(max_prefill_tokens=64, min_prefill_tokens=65, chunk_size=-1),
            "minPrefillTokens: 65",
        ),
        (EngineSettings(kv_pool_tokens=20), "kvPoolTokens: 20 .* pageSize .16., as 16 or 32"),
        (EngineSettings(kv_pool_tokens=3, page_size=8), "kvPoolTokens: 3 .* pageSize .8., as 8"),
        (EngineSettings(max_prefill_tokens=15), "maxPrefillTokens: 15 .* pageSize .16."),
        (
            EngineSettings(scheduling_policy="lpm", prefix_cache=False),
            'schedulingPolicy: "lpm" .* prefixCache',
        ),
        (
            EngineSettings(weight_dtype="int8", dtype="float16"),
            'weightDtype: "int8" .* auto beside dtype float16; or dtype bfloat16 or float32',
        ),
        (
            EngineSettings(kv_cache_dtype="fp8_e4m3", attention_backend="native"),
            'attentionBackend: "native" .* auto or torch beside kvCacheDtype fp8_e4m3',
        ),
        (
            EngineSettings(kv_cache_dtype="fp8_e4m3", attention_backend="flashinfer-fa3"),
            'attentionBackend: "flashinfer-fa3" .* flashinfer-fa2 or torch beside kvCacheDtype',
        ),
        (
            EngineSettings(weight_dtype="int8", attention_backend="torch"),
            'weightDtype: "int8" .* auto beside attentionBackend torch',
        ),
    ],
)
def test_contradicting_values_are_refused_by_name(settings: EngineSettings, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        resolve_settings(settings, Accelerator())


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_matrices_of_8_bits_go_with_what_the_kernels_compute(dtype: DType) -> None:
    settings = EngineSettings(weight_dtype="int8", dtype=dtype, attention_backend="native")
    assert resolve_settings(settings, Accelerator())["weight_dtype"].value == "int8"


def test_every_contradiction_is_told_at_once() -> None:
    settings = EngineSettings(
        chunk_size=8,
        kv_pool_tokens=1000,
        mixed_chunk=False,
        scheduling_policy="lpm",
        prefix_cache=False,
        max_prefill_tokens=32,
        min_prefill_tokens=64,
    )
    with pytest.raises(ConfigError) as caught:
        resolve_settings(settings, Accelerator(), SloTargets(itl_milliseconds=50))
    keys = [each.key for each in caught.value.errors]
    assert keys == [
        "minPrefillTokens",
        "chunkSize",
        "minPrefillTokens",
        "kvPoolTokens",
        "schedulingPolicy",
        "mixedChunk",
    ]
    assert str(caught.value) == "; ".join(map(str, caught.value.errors))
    assert "kvPoolTokens: 1000 is not allowed; allowed: a multiple" in str(caught.value)


def test_a_rendered_config_reads_back_the_same() -> None:
    config = EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}})
    planned = planned_config(config)
    assert planned_config(parse_engine_config(render_engine_config(planned))) == planned


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"model": {"uri": "x"}, "chunkSizes": 3}', ["chunkSizes: unknown field", " chunkSize?"]),
        (
            '{"model": {"uri": "x"}, "pageSize": 0}',
            ["pageSize: 0 is not allowed; allowed: a whole number from 1"],
        ),
        (
            '{"model": {"uri": "x"}, "chunkSize": 0}',
            ["chunkSize: 0 is not allowed; allowed: -1 (off) or"],
        ),
        ('{"model": {"uri": "x"}, "seed": 9223372036854775808}', ["seed", "9223372036854775808"]),
        ('{"model": {}}', ["model.uri: required"]),
        ("{" + 99 * " ", ["(root): Invalid JSON: EOF while", '; got "{   ', "   …"]),
        (
            '{"model": {"uri": "x"}, "chunkSize": "5"}',
            ['chunkSize: "5" is not allowed; allowed: a whole number from'],
        ),
        ('{"model": {"uri": ""}}', ['model.uri: "" is not allowed; allowed: at least 1 character']),
        (
            '{"model": {"nam": "x"}}',
            [
                "model.nam: unknown field; did you mean name? allowed: aliases, name, revision, "
                "uri; model.uri: required"
            ],
        ),
        (
            '{"slo": {"ttft": 1}}',
            [
                "slo.ttft: unknown field; allowed: itlMilliseconds, percentile, "
                "ttftMilliseconds; model: required"
            ],
        ),
        (
            '{"modl": {}}',
            [
                "modl: unknown field; did you mean model? allowed: model, ",
                "; model: required",
            ],
        ),
        (
            '{"model": {"uri": "x"}, "chunksize": 10, "schedulingPolicy": "lmp"}',
            [
                "chunksize: unknown field; did you mean chunkSize? allowed: chunkSize, ",
                "; did you mean lpm? allowed: 'fcfs', 'lpm', ",
            ],
        ),
        (
            '{"model": {"uri": "x"}, "role": "judge"}',
            ["role: \"judge\" is not allowed; allowed: 'mixed', 'prefill' or"],
        ),
    ],
)
def test_a_bad_file_is_one_line_with_key_value_and_what_is_allowed(
    text: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_engine_config(text)
    line = str(caught.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line


def test_what_this_version_lacks_is_refused_by_key() -> None:
    settings = EngineSettings(
        tensor_parallel_size=2,
        cuda_graph_max_batch=8,
    )
    refused = {error.key for error in unsupported(settings)}
    assert refused == {
        *("tensorParallelSize", "cudaGraphMaxBatch"),
    }
    assert not list(unsupported(EngineSettings()))
    rounded = EngineSettings(weight_dtype="int8")
    assert not list(unsupported(rounded))
    assert [error.key for error in unsupported(rounded, on_cpus=False)] == ["weightDtype"]


def test_what_is_resolved_for_a_cpu_is_refused_nowhere() -> None:
    """The operator writes resolved values into the engine's file."""
    config = EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}})
    planned = planned_config(config)
    assert planned.cuda_graph_max_batch == 0
    assert not list(unsupported(planned))


def test_every_refusal_names_a_real_setting() -> None:
    for row in ROWS:
        assert row.key.rpartition(".")[2] in known_keys(EngineSettings, row.key.split(".")[:-1])


def test_a_promised_time_to_the_first_token_orders_by_slack_unless_told_otherwise() -> None:
    promise = SloTargets(ttft_milliseconds=500)
    resolved = resolve_settings(EngineSettings(), Accelerator(), promise)["scheduling_policy"]
    assert (resolved.value, resolved.origin) == ("slack", "slo.ttftMilliseconds")
    lpm = resolve_settings(EngineSettings(scheduling_policy="lpm"), Accelerator(), promise)
    assert lpm["scheduling_policy"].value == "lpm"
    slack = EngineSettings(scheduling_policy="slack")
    with pytest.raises(ConfigError, match=r"allowed: another policy, or set slo.ttftMilliseconds"):
        resolve_settings(slack, Accelerator(), SloTargets(itl_milliseconds=50))
    whole = EngineSettings(chunk_size=-1, mixed_chunk=False)
    assert resolve_settings(whole, Accelerator(), promise), "it asks nothing of chunks"
    with pytest.raises(ConfigError, match="ttftMilliseconds, itlMilliseconds or both"):
        parse_engine_config('{"model": {"uri": "x"}, "slo": {"percentile": 90}}')


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_head_of_an_engine_that_hands_over_is_refused_by_its_key(role: str) -> None:
    speculation = '{"method":"Eagle","draft":{"uri":"/head"}}'
    text = f'{{"model":{{"uri":"dummy://x"}},"role":"{role}","speculation":{speculation}}}'
    with pytest.raises(ConfigError, match=r'^speculation.method: "Eagle" is not allowed; ') as it:
        parse_engine_config(text)
    assert it.value.allowed == (
        f"NGram or Draft in role {role}: the KV cache of a head is not handed over"
    )
