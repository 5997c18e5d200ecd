"""What plan would refuse is left out or named, and what is printed can be planned."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.main import main
from sluice_operator.cli.preview import preview
from sluice_operator.cli.translate.command import document, make_acceptable
from sluice_operator.cli.translate.rows import Flag, NotCarriedError
from sluice_operator.cli.translate.translate import ENGINES, UntranslatableError, translate
from sluice_operator.cli.yaml_text import to_yaml

from tests.examples import examples
from tests.operator.cli.test_translate import with_gpus


def test_the_command_prints_yaml_with_a_comment_behind_each_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--model", "/m", "--max-num-seqs", "128", "--tp", "2", "--host", "0.0.0.0"]
    assert main(["translate", "--from", "vllm", "--", *flags]) == 0
    shown = capsys.readouterr()
    assert (
        shown.out
        == """\
# --host 0.0.0.0: not needed: every pod listens on its own address
apiVersion: serving.sluice.dev/v1alpha1
kind: InferenceService
metadata:
  name: m
spec:
  model:
    uri: file:///m  # --model /m: where the weights are
  engine:
    maxRunningRequests: 128  # --max-num-seqs 128: most requests that run at once
    tensorParallelSize: 2  # --tp 2: GPUs that share each layer
  accelerator:
    count: 2  # GPUs of one engine, of any product: product takes one, e.g. NVIDIA-L4
"""
    )
    assert shown.err == ""


EAGLE = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /head"


@pytest.mark.parametrize(
    ("engine", "command", "note", "spec"),
    [
        (
            "sglang",
            "--model-path /m --max-total-tokens 100003",
            "engine.kvPoolTokens: 100003 is rounded down to 100000, whole pages of 16",
            {"engine": {"kvPoolTokens": 100_000}},
        ),
        (
            "vllm",
            '--model /m --speculative-config {"method":"draft_model","model":"a/draft"}',
            "model.cache.size: 200Gi is a guess",
            {
                "model": {"uri": "file:///m", "adapters": [], "cache": {"size": "200Gi"}},
                "engine": {"speculation": {"method": "Draft", "draft": {"uri": "hf://a/draft"}}},
            },
        ),
        (
            "vllm",
            "--model s3://bucket/b",
            "model.cache.size: 200Gi is a guess",
            {"model": {"uri": "s3://bucket/b", "cache": {"size": "200Gi"}}},
        ),
        (
            "vllm",
            '--model /m --speculative-config {"method":"draft_model","model":"s3://a/b"}',
            "engine.speculation: {",
            {},
        ),
        (
            "vllm",
            "--model /m --quantization fp8",
            "--quantization fp8: not done: name an FP8 checkpoint: engines make no FP8 weights of "
            "others. On NVIDIA's GPUs from A100 on a checkpoint's weights stay packed",
            {},
        ),
        (
            "vllm",
            '--model /m --kv-transfer-config {"kv_connector":"LMCacheConnectorV1"}',
            '--kv-transfer-config {"kv_connector":"LMCacheConnectorV1"}: not done: '
            "LMCacheConnectorV1 is not here",
            {},
        ),
        (
            "vllm",
            '--model /m --kv-transfer-config {"kv_connector":"NixlConnector","kv_port":1}',
            "--kv-transfer-config: not done: kv_port has no setting",
            {"engine": {"kvTransfer": {"backend": "NIXL", "protocol": "rdma"}}, "prefill": {}},
        ),
        (
            "sglang",
            f"--model-path /m --tp 1 --disaggregation-mode prefill {EAGLE}",
            "engine.speculation: {",
            {"engine": {"tensorParallelSize": 1}, "prefill": {}},
        ),
        (
            "sglang",
            f"--model-path /m --hicache-size 8 {EAGLE} --cuda-graph-max-bs 8",
            "engine.speculation: {",
            {"engine": {"hostCache": {"memory": "8G"}, "cudaGraphMaxBatch": 8}},
        ),
        (
            "sglang",
            "--model-path /m --enable-hierarchical-cache",
            "--enable-hierarchical-cache: not done: it is on where --hicache-size gives its memory",
            {},
        ),
        (
            "sglang",
            "--model-path /m --hicache-size 8 --disable-radix-cache",
            "engine.hostCache: {",
            {"engine": {"prefixCache": False}},
        ),
        (
            "sglang",
            "--model-path /m --disaggregation-ib-device mlx5_0",
            "engine.kvTransfer: {",
            {},
        ),
        (
            "vllm",
            "--model /m --revision main",
            'model.revision: "main" is left out: "main" is not allowed; allowed: only with a',
            {},
        ),
    ],
)
def test_what_plan_would_refuse_and_what_is_lost_has_a_note(
    engine: str,
    command: str,
    note: str,
    spec: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["translate", "--from", engine, "--", *command.split()]) == 0
    shown = capsys.readouterr()
    assert f"note: {note}" in shown.err
    printed = yaml.safe_load(shown.out)
    assert printed["spec"] == with_gpus({"model": {"uri": "file:///m"}} | spec)
    assert preview(printed, DEFAULT_IMAGES).plan.refusal is None


@pytest.mark.parametrize(
    ("engine", "command", "line"),
    [
        ("vllm", "--max-num-seqs 8", "vllm: model.uri: no flag names the model"),
        ("vllm", "a/b --pipeline-parallel-size 2", "vllm --pipeline-parallel-size: '2' is not all"),
        (
            "vllm",
            "a/b -tp 65",
            "vllm engine.tensorParallelSize: 65 is not allowed; allowed: a whole",
        ),
        (
            "vllm",
            "a/b --device cpu -tp 2",
            "vllm: spec.engine.tensorParallelSize: 2 is not allowed",
        ),
        ("vllm", "a/b --lora-modules b=/x", 'vllm: spec.model.adapters[0].name: "b" is not allow'),
        ("vllm", "a/b --kv-transfer-config {}", "a JSON object with kv_connector"),
        (
            "vllm",
            'a/b --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"both"}',
            "allowed: kv_role kv_producer, kv_consumer, kv_both",
        ),
        ("sglang", "--model-path a/b --speculative-num-draft-tokens 1", "whole number, at least 2"),
        ("sglang", "--model-path a/b --disaggregation-transfer-backend mori", "mooncake_tcp, nixl"),
        ("sglang", "a/b", "sglang a/b: is no flag; allowed: --model-path a/b"),
        (
            "vllm",
            "a/b --enable-prefix-caching --no-enable-prefix-caching",
            "contradicts --enable-prefix-caching: both set engine.prefixCache",
        ),
        ("vllm", "a/b c/d", "vllm c/d: is no flag; a/b is the model"),
    ],
)
def test_what_cannot_be_planned_is_not_printed(
    engine: str, command: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", "--from", engine, "--", *command.split()]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert line in shown.err


WORDS = (
    "1", "2", "3", "-1", "0.9", "16", "4096", "100003", "1 2 8", "auto", "cpu", "fp8", "/a/b",
    "org/name", "s3://bucket/x", "a=/adapters/a", "a b", "lpm", "priority", "fcfs", "EAGLE3",
    "NGRAM", "STANDALONE", "prefill", "nixl", "mooncake", "mlx5_0", "flashinfer", "torch_native",
    "TORCH_SDPA", "float16", "hermes", "mistral", "qwen3", "awq", "lru", "main",
    '{"method":"ngram"}', '{"method":"eagle3","model":"/h"}',
    '{"method":"draft_model","model":"o/d"}',
    '{"kv_connector":"NixlConnector"}', '{"kv_connector":"MultiConnector"}',
)  # fmt: skip


def _understood(flag: Flag) -> list[str | None]:
    """Values that the flag takes."""
    if flag.convert is None:
        return [None]
    values: list[str | None] = []
    for word in WORDS:
        with suppress(ValueError, NotCarriedError):
            flag.convert(word)
            values.append(word)
    return values


@pytest.mark.process
@pytest.mark.parametrize("engine", ENGINES)
@examples(100)
@given(data=st.data())
def test_whatever_flags_come_together_plan_takes_what_is_printed(
    engine: str, data: st.DataObject
) -> None:
    setting = [flag for flag in ENGINES[engine] if flag.path or "device" in flag.names]
    chosen = st.lists(st.integers(0, len(setting) - 1), max_size=8, unique=True)
    flags = [setting[index] for index in data.draw(chosen)]
    line = ["--model", "/models/a"]
    for flag in flags:
        value = data.draw(st.sampled_from(_understood(flag)))
        line += [f"--{flag.names[0]}", *(value.split() if value and flag.many else [value or ""])]
    line = [word for word in line if word]
    try:
        translation = translate(engine, line)
    except UntranslatableError:
        return
    if make_acceptable(translation):
        return
    service = yaml.safe_load(to_yaml(document(translation)))
    assert preview(service, DEFAULT_IMAGES).plan.refusal is None
    notes = "\n".join((*translation.notes, *translation.lines))
    comments = "\n".join(text for texts in translation.comments.values() for text in texts)
    for flag in flags:
        assert f"--{flag.names[0]}" in notes + comments


@pytest.mark.parametrize("engine", ENGINES)
def test_the_property_above_tries_each_setting(engine: str) -> None:
    assert [flag.names for flag in ENGINES[engine] if flag.path and not _understood(flag)] == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/models/Llama-3.1_8B --max-num-seqs 64", "llama-3-1-8b"),
        ("/models/a --served-model-name org/My.Model", "my-model"),
        (f"/models/4-{'ab-' * 20}", "ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-a"),
        ("/models/4", "model"),
    ],
)
def test_what_is_printed_can_be_planned(
    command: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["translate", "--from", "vllm", "--", "vllm", "serve", *command.split()]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    monkeypatch.setattr("sys.stdin", io.StringIO(printed.out))
    assert main(["plan", "-f", "-"]) == 0
    assert f"InferenceService default/{name}: mode Mixed" in capsys.readouterr().out


def test_an_unknown_flag_fails_the_command_only_when_strict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for unknown, why in (("--enable-x", "not known"), ("--enable-dp-attention", "not done: ")):
        flags = ["--", "--model-path", "/m", unknown, "--page-size", "32"]
        assert main(["translate", "--from", "sglang", *flags]) == 0
        shown = capsys.readouterr()
        assert yaml.safe_load(shown.out)["spec"]["engine"] == {"pageSize": 32}
        assert f"note: {unknown}: " in shown.err
        assert why in shown.err
        assert main(["translate", "--from", "sglang", "--strict", *flags]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"sglang {unknown}: ")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["translate", "--from", "tgi", "--", "--x"])
