"""The command against a bucket on loopback: what it leaves on disk, what it asks, how it fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sluice_contract.cluster.termination import EXIT_REFUSED
from sluice_fetch.__main__ import EXIT_TRANSIENT, main

from tests.fetch.bucket_server import Store, safetensors, serving
from tests.fetch.corporate import Authority, proxying

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
NEEDED = {*SHARDS, INDEX, "config.json", "tokenizer.json"}
URI = "s3://models/org/name"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
CREDENTIALS = "# of tests\nAWS_ACCESS_KEY_ID=reader\nAWS_SECRET_ACCESS_KEY=s3cret\n"


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


@pytest.fixture
def store() -> Iterator[Store]:
    """A model of two shards, a file that no engine reads, and a folder beside them."""
    objects = {name: safetensors(700_000 + i, b"weights") for i, name in enumerate(SHARDS)}
    objects |= {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}"}
    objects |= {INDEX: json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}).encode()}
    objects |= {"README.md": b"read me", "original/model.safetensors": b"once more"}
    with serving(Store({f"org/name/{name}": body for name, body in objects.items()})) as served:
        yield served


class Run:
    """The command's exit code, its lines and what it slept."""

    def __init__(self, store: Store, root: Path, *options: str, secret: str = CREDENTIALS) -> None:
        file = root / "secret"
        file.write_text(secret)
        arguments = ["--uri", URI, "--endpoint", store.url, "--parallel", "1"]
        arguments += ["--token-file", str(file)] if secret else []
        to = () if "--resolve-only" in options else ("--cache", str(root))
        self.slept: list[float] = []
        self.code = main([*arguments, *to, *options], lambda _, each: self.slept.append(each))


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def needed_of(store: Store) -> dict[str, bytes]:
    return {name: store.objects[f"org/name/{name}"] for name in NEEDED}


def snapshots_of(root: Path, repository: str = "s3--models--org--name") -> list[dict[str, bytes]]:
    folders = (root / f"models--{repository}" / "snapshots").iterdir()
    return [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]


def test_what_an_engine_reads_is_there_with_one_commit(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Run(store, tmp_path).code == 0
    assert snapshots_of(tmp_path) == [needed_of(store)]
    resolved, *_, complete = lines(capsys)
    assert (resolved["event"], resolved["commit"]) == ("resolved", complete["commit"])
    signed = {sent["authorization"].split("/")[0] for _, sent in store.requests}
    assert signed == {"AWS4-HMAC-SHA256 Credential=reader"}
    conditional = {"if-match" in sent for path, sent in store.requests if "list-type" not in path}
    assert conditional == {True}, "only what was listed is taken"


def test_resolving_prints_commit_and_facts_and_fetches_no_weights(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = tmp_path / "termination"
    message.touch()
    monkeypatch.setenv("SLUICE_TERMINATION_LOG", str(message))
    assert Run(store, tmp_path, "--resolve-only").code == 0
    facts = json.loads(json.loads(message.read_bytes())["message"])
    assert (facts["architecture"], facts["headDim"]) == ("Qwen3ForCausalLM", 128)
    assert facts["bytes"] == sum(map(len, needed_of(store).values()))
    assert store.sent_bytes < 10_000


def test_a_commit_is_what_the_objects_that_engines_read_are(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(store, tmp_path)
    commit = lines(capsys)[-1]["commit"]
    store.objects["org/name/README.md"] = b"no engine reads this"
    Run(store, tmp_path, "--revision", commit)
    assert lines(capsys)[-1]["commit"] == commit
    before = store.sent_bytes
    store.objects["org/name/tokenizer.json"] = b'{"trained": "further"}'
    Run(store, tmp_path)
    assert lines(capsys)[-1]["commit"] != commit
    assert store.sent_bytes - before < 10_000, "the shards are the same objects"
    assert len(snapshots_of(tmp_path)) == 2


def test_a_commit_that_is_complete_asks_nobody_and_another_one_is_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(store, tmp_path)
    commit = lines(capsys)[-1]["commit"]
    store.objects["org/name/config.json"] = b"{}"
    store.requests.clear()
    assert (Run(store, tmp_path, "--revision", commit).code, store.requests) == (0, [])
    (tmp_path / "empty").mkdir()
    lines(capsys)
    assert Run(store, tmp_path / "empty", "--revision", commit).code == EXIT_REFUSED
    failed = lines(capsys)[-1]
    assert failed["reason"] == "ObjectChanged"
    assert f"no longer {commit}" in failed["message"]


def test_a_download_that_breaks_off_goes_on_where_it_was(store: Store, tmp_path: Path) -> None:
    store.ends_after = [500_000, 300_000]
    assert Run(store, tmp_path).slept == [1.0, 1.0]
    assert snapshots_of(tmp_path) == [needed_of(store)]
    ranges = [sent["range"] for _, sent in store.requests if "range" in sent]
    assert len(ranges) == 2
    assert store.sent_bytes < 1_420_000 + 2 * (256 << 10), "of 1.4 MB, and a chunk for each break"


@pytest.mark.parametrize("honours", [True, False])
def test_an_object_that_changes_during_the_download_is_refused_by_name(
    honours: bool, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.honours_if_match = honours
    store.changes_after = {f"org/name/{SHARDS[1]}": safetensors(700_001, b"others.")}
    run = Run(store, tmp_path)
    assert (run.code, run.slept) == (EXIT_REFUSED, [])
    failed = lines(capsys)[-1]
    assert failed["reason"] == "ObjectChanged"
    assert failed["message"] == f"{SHARDS[1]} of {URI}: it was changed after it was listed"
    assert not list(tmp_path.glob("*/complete/*"))


def test_an_object_that_is_removed_during_the_download_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.changes_after = {f"org/name/{SHARDS[1]}": None}
    assert Run(store, tmp_path).code == EXIT_REFUSED
    failed = lines(capsys)[-1]
    assert failed["reason"] == "ObjectChanged"
    assert failed["message"] == f"{SHARDS[1]} of {URI}: it was removed after it was listed"


SHARD = f"org/name/{SHARDS[0]}"
REFUSALS: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    "403": ({"refusals": [(403, "AccessDenied")]}, (), "AccessDenied", "answers 403 AccessDenied"),
    "an unknown key": ({"refusals": [(403, "InvalidAccessKeyId")]}, (), "AccessDenied", "403"),
    "an expired credential": (
        {"refusals": [(400, "ExpiredToken")]},
        (),
        "AccessDenied",
        "the credential has expired",
    ),
    "another region": (
        {"refusals": [(400, "AuthorizationHeaderMalformed")]},
        (),
        "InvalidConfig",
        "AWS_REGION",
    ),
    "no such bucket": ({"bucket": "others"}, (), "RepositoryNotFound", "NoSuchBucket"),
    "an empty prefix": (
        {},
        ("--uri", "s3://models/org/other"),
        "RepositoryNotFound",
        "s3://models/org/other: there is no object under this prefix",
    ),
    "no config.json": (
        {"objects": {SHARD: b"", "org/name/tokenizer.json": b"{}"}},
        (),
        "NotAModel",
        "no config.json",
    ),
    "weights of another format": (
        {
            "objects": {
                f"org/name/{name}": b"{}"
                for name in ("config.json", "tokenizer.json", "pytorch_model-00001-of-00001.bin")
            }
        },
        (),
        "NotAModel",
        "pytorch_model-00001-of-00001.bin is not read",
    ),
    "an unknown scheme": ({}, ("--uri", "ftp://models/org"), "InvalidConfig", "allowed: hf://"),
    "a path that leaves": ({}, ("--uri", "s3://models/../x"), "InvalidConfig", "s3://bucket/"),
    "a branch": ({}, ("--revision", "v9"), "InvalidConfig", "allowed: main, or the commit"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_failure_is_named_at_once(
    case: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, options, reason, text = REFUSALS[case]
    for name, value in changes.items():
        setattr(store, name, value)
    run = Run(store, tmp_path, *options)
    assert (run.code, run.slept) == (EXIT_REFUSED, [])
    failed = lines(capsys)[-1]
    assert (failed["event"], failed["reason"]) == ("failed", reason)
    assert text in failed["message"]
    assert "s3cret" not in failed["message"]
    assert not list(tmp_path.glob("*/complete/*"))


def test_an_object_that_was_cut_when_it_was_stored_is_refused_by_its_own_header(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = store.objects[SHARD]
    store.objects[SHARD] = whole[:-1000]
    assert Run(store, tmp_path).code == EXIT_REFUSED
    failed = lines(capsys)[-1]
    assert failed["reason"] == "FileCorrupt"
    assert f"says {len(whole)} bytes, the object has {len(whole) - 1000}" in failed["message"]


def test_weights_of_another_format_are_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.objects[SHARD] = b"<html>sign in</html>"
    assert Run(store, tmp_path).code == EXIT_REFUSED
    assert "is none of safetensors" in lines(capsys)[-1]["message"]


@pytest.mark.parametrize("name", [SHARDS[0], "tokenizer.json", "config.json", INDEX])
def test_a_pointer_of_git_lfs_is_no_file(
    name: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    store.objects[f"org/name/{name}"] = pointer
    assert Run(store, tmp_path).code == EXIT_REFUSED
    text = f"is a pointer of Git LFS ({len(pointer)} bytes), not the file itself"
    failed = lines(capsys)[-1]
    assert name in failed["message"]
    assert text in failed["message"]
    assert not list(tmp_path.glob("*/complete/*"))


@pytest.mark.parametrize(
    ("refusal", "reason"), [((503, "SlowDown"), "RateLimited"), ((500, "Oops"), "HubUnreachable")]
)
def test_what_lasts_is_given_up_and_may_be_started_again(
    refusal: tuple[int, str],
    reason: str,
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store.refusals = [refusal] * 6
    run = Run(store, tmp_path)
    assert (run.code, run.slept) == (EXIT_TRANSIENT, [1.0, 2.0, 4.0, 8.0, 16.0])
    assert lines(capsys)[-1]["reason"] == reason


SECRETS = {
    "of another provider": (CREDENTIALS + "GOOGLE_TOKEN=x", "line 4", "GOOGLE_TOKEN is not allow"),
    "a key alone": ("s3cret", "line 1", "the text is not allowed; allowed: AWS_…=value"),
    "no such setting": (CREDENTIALS + "AWS_FOO=x", "s3://", "'aws_foo' is not valid"),
    "half a key": ("AWS_ACCESS_KEY_ID=a", "no credentials", "AWS_SECRET_ACCESS_KEY"),
    "half an identity": ("AWS_WEB_IDENTITY_TOKEN_FILE=/f", "no credentials", "AWS_ROLE_ARN"),
    "signed by nobody": ("AWS_SKIP_SIGNATURE=false", "no credentials", "AWS_SKIP_SIGNATURE"),
    "none": ("", "there are no credentials", "AWS_ACCESS_KEY_ID"),
}


@pytest.mark.parametrize("case", SECRETS)
def test_a_secret_that_is_none_is_refused_before_a_request(
    case: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, *texts = SECRETS[case]
    assert (Run(store, tmp_path, secret=secret).code, store.requests) == (EXIT_REFUSED, [])
    message = lines(capsys)[-1]["message"]
    assert [text for text in texts if text not in message] == []
    assert "s3cret" not in message


def test_a_secret_that_is_not_there_yet_is_worth_another_start(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = ("--token-file", str(tmp_path / "later"))
    assert Run(store, tmp_path, *later).code == EXIT_TRANSIENT
    assert lines(capsys)[-1]["reason"] == "TokenMissing"


def test_the_endpoint_of_the_secret_goes_before_the_option(store: Store, tmp_path: Path) -> None:
    secret = f"{CREDENTIALS}AWS_ENDPOINT_URL={store.url}"
    option = ("--endpoint", "http://127.0.0.1:9")
    assert Run(store, tmp_path, *option, secret=secret).code == 0


def test_credentials_may_be_in_the_environment(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    assert Run(store, tmp_path, secret="").code == 0


def test_credentials_may_come_from_the_agent_of_a_node(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("of the ServiceAccount")
    store.credentials = {"AccessKeyId": "pod", "SecretAccessKey": "s", "Token": "t"}
    store.credentials["Expiration"] = "2999-01-01T00:00:00Z"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{store.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    assert Run(store, tmp_path, secret="").code == 0
    (_, agent), *others = store.requests
    assert agent["authorization"] == "of the ServiceAccount"
    assert {sent["x-amz-security-token"] for _, sent in others} == {"t"}


def test_a_bucket_of_google_is_fetched_alike(store: Store, tmp_path: Path) -> None:
    uri = ("--uri", "gs://models/org/name")
    assert Run(store, tmp_path, *uri, secret="GOOGLE_SKIP_SIGNATURE=true").code == 0
    assert snapshots_of(tmp_path, "gs--models--org--name") == [needed_of(store)]


def test_a_container_of_azure_needs_its_account(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = ("--uri", "az://models/org/name")
    assert Run(store, tmp_path, *uri, secret="AZURE_STORAGE_ACCOUNT_KEY=c2VjcmV0").code == 2
    assert "AZURE_STORAGE_ACCOUNT_NAME is not set" in lines(capsys)[-1]["message"]


def test_a_store_in_a_company_is_asked_through_its_proxy_and_trusted_by_its_authority(
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody resolves the store's name, so what arrives came through the proxy."""
    host = "store.corp.test"
    authority = Authority(tmp_path, host)
    with (
        serving(Store(store.objects), authority.context) as private,
        proxying({host: urlsplit(private.url).port or 0}) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        for name in ("NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        private.url = f"https://{host}"
        assert Run(private, tmp_path).code == EXIT_TRANSIENT
        assert lines(capsys)[-1]["reason"] == "HubUnreachable"
        assert Run(private, tmp_path, "--ca-file", str(authority.file)).code == 0
        assert set(proxy.asked) == {f"{host}:443"}
