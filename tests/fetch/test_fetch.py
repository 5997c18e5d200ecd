"""The command against a hub on loopback: what it leaves on disk, what it asks, how it fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import scan_cache_dir, snapshot_download
from sluice_contract.cluster.termination import EXIT_REFUSED
from sluice_contract.wire.fetch_progress import FetchProgress
from sluice_fetch.__main__ import EXIT_TRANSIENT, main

from e2e.cluster.ports import free_port
from tests.fetch.conftest import SHARDS
from tests.fetch.hub_server import COMMIT, OTHER_COMMIT, Hub
from tests.patience import PATIENCE_SECONDS

NEEDED = {*SHARDS, "config.json", "tokenizer.json", "model.safetensors.index.json"}
EVERYTHING_BYTES = 6_000_001


class Run:
    """The command's exit code, its lines and what it slept."""

    def __init__(self, hub: Hub, root: Path, *options: str) -> None:
        arguments = ["--uri", f"hf://{hub.repository}", "--endpoint", hub.url, "--parallel", "1"]
        to = () if "--resolve-only" in options else ("--cache", str(root))
        self.slept: list[float] = []
        self.code = main([*arguments, *to, *options], lambda _, each: self.slept.append(each))

    @staticmethod
    def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def snapshot_of(root: Path, commit: str = COMMIT) -> dict[str, bytes]:
    folder = root / "models--org--name" / "snapshots" / commit
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def needed_of(hub: Hub) -> dict[str, bytes]:
    return {name: hub.files[name] for name in NEEDED}


def test_an_adapter_is_not_only_resolved(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=str(EXIT_REFUSED)):
        Run(hub, tmp_path, "--resolve-only", "--adapter")
    assert "--resolve-only: not allowed with argument --adapter" in capsys.readouterr().err


def test_what_an_engine_reads_is_there_and_nothing_else(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Run(hub, tmp_path).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub)
    lines = Run.lines(capsys)
    assert [line["event"] for line in lines] == ["resolved", "progress", "progress", "complete"]
    assert lines[0]["commit"] == lines[3]["commit"] == COMMIT
    assert [line["bytes"] for line in lines[1:3]] == [0, lines[0]["total"]]
    assert lines[1]["total"] == lines[2]["total"] == lines[0]["total"] > EVERYTHING_BYTES


def test_how_far_a_download_is_can_be_asked(hub: Hub, tmp_path: Path) -> None:
    hub.stalls_at = 1_000_000
    port = free_port()
    url = f"http://127.0.0.1:{port}/progress"
    command = threading.Thread(target=Run, args=(hub, tmp_path, "--progress-port", str(port)))
    command.start()
    try:
        assert hub.stalled.wait(PATIENCE_SECONDS)
        told = FetchProgress.model_validate_json(httpx2.get(url).content)
    finally:
        hub.go_on.set()
        command.join()
    assert (told.bytes, told.eta_seconds) == (0, None), "as it was told last, at the beginning"
    assert told.total > EVERYTHING_BYTES


def test_a_port_that_is_taken_keeps_nothing_from_being_fetched(hub: Hub, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert Run(hub, tmp_path, "--progress-port", str(taken.getsockname()[1])).code == 0


def test_huggingface_hub_reads_the_cache_as_its_own(hub: Hub, tmp_path: Path) -> None:
    Run(hub, tmp_path)
    found = snapshot_download("org/name", cache_dir=tmp_path, local_files_only=True)
    assert found == str(tmp_path / "models--org--name" / "snapshots" / COMMIT)
    assert scan_cache_dir(tmp_path).warnings == []


def test_a_pinned_commit_that_is_complete_asks_no_hub(hub: Hub, tmp_path: Path) -> None:
    Run(hub, tmp_path)
    hub.requests.clear()
    assert Run(hub, tmp_path, "--revision", COMMIT).code == 0
    assert hub.requests == []


def test_of_an_adapter_its_two_files_come_beside_a_model_of_the_same_commit(
    hub: Hub, tmp_path: Path
) -> None:
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"pairs"}
    hub.files |= adapter
    pinned = ("--revision", COMMIT)
    assert Run(hub, tmp_path, *pinned).code == 0
    assert snapshot_of(tmp_path) == needed_of(hub), "no model has files of an adapter"
    assert Run(hub, tmp_path, *pinned, "--adapter").code == 0
    assert snapshot_of(tmp_path) == needed_of(hub) | adapter
    hub.requests.clear()
    assert Run(hub, tmp_path, *pinned).code == 0
    assert Run(hub, tmp_path, *pinned, "--adapter").code == 0
    assert hub.requests == [], "one of both was forgotten"
    assert Run(hub, tmp_path / "other", "--adapter").code == 0
    assert snapshot_of(tmp_path / "other") == adapter


def test_a_moved_branch_fetches_only_what_changed(hub: Hub, tmp_path: Path) -> None:
    Run(hub, tmp_path)
    before = hub.sent_bytes
    hub.files[SHARDS[0]] = b"trained further"
    hub.revisions["main"] = OTHER_COMMIT
    assert Run(hub, tmp_path).code == 0
    assert snapshot_of(tmp_path, OTHER_COMMIT) == needed_of(hub)
    assert hub.sent_bytes - before < 5_000
    assert snapshot_of(tmp_path)[SHARDS[0]] != hub.files[SHARDS[0]]


def test_resolving_only_prints_the_commit_and_fetches_nothing(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = tmp_path / "termination"
    message.touch()
    monkeypatch.setenv("SLUICE_TERMINATION_LOG", str(message))
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    config |= {"max_position_embeddings": 512, "intermediate_size": 128, "torch_dtype": 7}
    hub.files["config.json"] = json.dumps(config).encode()
    assert Run(hub, tmp_path, "--resolve-only").code == 0
    assert [line["commit"] for line in Run.lines(capsys)] == [COMMIT]
    told = json.loads(message.read_bytes())
    assert told["reason"] == "ModelResolved"
    assert json.loads(told["message"]) == {
        "architecture": "Qwen3ForCausalLM",
        "layers": 2,
        "kvHeads": 2,
        "headDim": 128,
        "hiddenSize": 64,
        "tensorParallelSizes": [1, 2, 4],
        "contextTokens": 512,
        "parameters": 64 * (2 * 512 + 2 * (2 * 6 * 128 + 3 * 128)),
        "commit": COMMIT,
        "bytes": sum(map(len, needed_of(hub).values())),
    }
    assert len(hub.requests) == 3, "the list, config.json, the index"


@pytest.mark.parametrize("config", [b"[]", b"{", b" " * (1 << 20) + b"{}"])
def test_a_config_that_is_none_is_refused_when_it_is_resolved(
    config: bytes, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files["config.json"] = config
    assert Run(hub, tmp_path, "--resolve-only").code == EXIT_REFUSED
    assert Run.lines(capsys)[-1]["reason"] == "NotAModel"


BESIDE = {"config.json": b"{}", "tokenizer.json": b"{}"}
INDEX = "model.safetensors.index.json"
INDEXED = BESIDE | {INDEX: json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()}


@pytest.mark.parametrize(
    ("files", "options", "text"),
    [
        (
            BESIDE | {"pytorch_model.bin": b"pickled"},
            (),
            "has no model*.safetensors; pytorch_model.bin is not read; allowed: model.safetensors",
        ),
        (BESIDE | {"model-q4.gguf": b"GGUF"}, (), "model-q4.gguf is not read; allowed: model.saf"),
        (
            {"model-q4.gguf": b"GGUF"},
            (),
            "has no config.json, no tokenizer.json, no model*.safetensors; model-q4.gguf is not",
        ),
        (BESIDE | {SHARDS[0]: b"a", SHARDS[1]: b"b"}, (), f"{INDEX} is missing, which says what"),
        (INDEXED | {SHARDS[0]: b"a"}, (), f"{SHARDS[1]} is missing; {INDEX} names it"),
        (
            INDEXED | {"model.safetensors": b"all"},
            (),
            f"{SHARDS[0]}, {SHARDS[1]} are missing: {INDEX} is stale; allowed: the files that it"
            " names, or model.safetensors without it",
        ),
        (
            {"adapter_config.json": b"{}", "adapter_model.bin": b"pickled"},
            ("--adapter",),
            "adapter_model.bin is not read; allowed: adapter_model.safetensors",
        ),
    ],
)
@pytest.mark.parametrize("resolves", [True, False])
def test_weights_that_no_engine_reads_are_named_before_the_download(
    files: dict[str, bytes],
    options: tuple[str, ...],
    text: str,
    resolves: bool,
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.files = files
    only = ("--resolve-only",) if resolves and not options else ()
    assert Run(hub, tmp_path, *options, *only).code == EXIT_REFUSED
    failed = Run.lines(capsys)[-1]
    assert failed["reason"] == ("NotAnAdapter" if options else "NotAModel")
    assert text in failed["message"]
    assert not [path for path, _ in hub.requests if path.endswith((".safetensors", ".bin"))]


def test_a_token_whose_file_is_not_there_yet_is_worth_another_start(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(hub, tmp_path, "--token-file", str(tmp_path / "later"))
    assert (run.code, hub.requests) == (EXIT_TRANSIENT, [])
    assert Run.lines(capsys)[-1]["reason"] == "TokenMissing"


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    (tmp_path / "token").write_text("hf_secret\n")
    assert Run(hub, tmp_path, "--token-file", str(tmp_path / "token")).code == 0
    given = {path.startswith("/lfs/"): "authorization" in sent for path, sent in hub.requests}
    assert given == {False: True, True: False}


REFUSALS: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "another repository": ({"repository": "org/other"}, (), "RepositoryNotFound"),
    "another revision": ({}, ("--revision", "v9"), "RevisionNotFound"),
    "gated, without a token": ({"token": "hf_secret"}, (), "AccessDenied"),
    "no access for anybody": ({"refusals": [(403, {})]}, (), "AccessDenied"),
    "damaged on the hub": ({"damage": 2}, (), "FileCorrupt"),
    "no weights": ({"files": {"config.json": b"{}", "tokenizer.json": b"{}"}}, (), "NotAModel"),
    "no adapter": ({}, ("--adapter",), "NotAnAdapter"),
    "no such endpoint": ({}, ("--endpoint", "ftp://hub"), "InvalidConfig"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_failure_is_named_at_once(
    case: str,
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes, options, reason = REFUSALS[case]
    for name, value in changes.items():
        setattr(hub, name, value)
    message = tmp_path / "termination"
    message.touch()
    monkeypatch.setenv("SLUICE_TERMINATION_LOG", str(message))
    uri = ("--uri", "hf://org/name")
    run = Run(hub, tmp_path / "cache", *uri, *options)
    assert (run.code, run.slept) == (EXIT_REFUSED, [])
    failed = Run.lines(capsys)[-1]
    assert (failed["event"], failed["reason"]) == ("failed", reason)
    assert json.loads(message.read_bytes()) == {"reason": reason, "message": failed["message"]}
    assert not list(tmp_path.glob("cache/*/complete/*"))


def test_what_does_not_fit_is_refused_before_the_first_byte(
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert Run(hub, tmp_path).code == EXIT_REFUSED
    failed = Run.lines(capsys)[-1]
    assert failed["reason"] == "NoSpace"
    assert "10000000 are free" in failed["message"]
    assert len(hub.requests) == 1


def test_a_cache_that_cannot_be_written_to_is_named(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models--org--name").write_text("no folder")
    assert Run(hub, tmp_path).code == EXIT_REFUSED
    assert Run.lines(capsys)[-1]["reason"] == "CacheFailed"


def test_a_volume_that_fills_up_midway_is_named(
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert Run(hub, tmp_path).code == EXIT_REFUSED
    assert Run.lines(capsys)[-1]["reason"] == "NoSpace"


def test_a_rate_limit_is_waited_for_as_long_as_the_hub_asks(hub: Hub, tmp_path: Path) -> None:
    hub.refusals = [(429, {"Retry-After": "7"}), (503, {}), (429, {"Retry-After": "9999"})]
    run = Run(hub, tmp_path)
    assert (run.code, run.slept) == (0, [7.0, 2.0, 300.0])


def test_a_file_that_waits_for_the_hub_does_not_delay_the_failure_of_another(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refused_files = {SHARDS[0]: (429, {"Retry-After": "300"}), SHARDS[1]: (403, {})}
    arguments = ["--uri", "hf://org/name", "--endpoint", hub.url, "--cache", str(tmp_path)]
    ended_early: list[bool] = []
    code = main([*arguments, "--parallel", "4"], lambda stop, _: ended_early.append(stop.wait(60)))
    assert (code, ended_early) == (EXIT_REFUSED, [True])
    assert Run.lines(capsys)[-1]["reason"] == "AccessDenied"


@pytest.mark.parametrize(("status", "reason"), [(429, "RateLimited"), (502, "HubUnreachable")])
def test_what_lasts_is_given_up_and_may_be_started_again(
    status: int, reason: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refusals = [(status, {})] * 6
    run = Run(hub, tmp_path)
    assert (run.code, run.slept) == (EXIT_TRANSIENT, [1.0, 2.0, 4.0, 8.0, 16.0])
    assert Run.lines(capsys)[-1]["reason"] == reason


def test_a_hub_that_does_not_answer_is_named(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Run(hub, tmp_path, "--endpoint", "http://127.0.0.1:9").code == EXIT_TRANSIENT
    assert Run.lines(capsys)[-1]["reason"] == "HubUnreachable"
