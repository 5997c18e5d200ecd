"""A service whose model is in a bucket: the Jobs that bring it, what they may reach, and where its
engines have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sluice_fetch.__main__ import _parse, main
from sluice_fetch.bucket import bucket
from sluice_fetch.cache import Cache
from sluice_fetch.settings import bucket_settings
from sluice_operator.api.model_uri import CLAIM_MOUNT
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import TOKEN_FILE
from sluice_operator.manifests.hub import HubAccess
from sluice_operator.service.observe import Installation

from tests.fetch.bucket_server import Store, safetensors, serving
from tests.operator.delivery.world import World
from tests.operator.examples import of, service_plan
from tests.operator.model_pods import COMMIT, resolved, said

URI = "s3://models/qwen/qwen3-8b/"
CACHED: Manifest = {"uri": URI, "cache": {"size": "20Gi"}}
SECRET: Manifest = {"tokenSecretRef": {"name": "reader", "key": "variables"}}
MINIO = Installation(hub=HubAccess(bucket_endpoint="http://minio.store:9000"))


def asked(model: Manifest, installation: Installation | None = None) -> World:
    """The first reconcile: the model is being resolved."""
    world = World({"model": model}, installation=installation or Installation())
    world.reconcile()
    return world


def ends(world: World, message: str) -> None:
    """The Job succeeds, and what it says is acted upon."""
    world.ends(0, message)
    world.reconcile()
    world.reconcile()


def pod_of(world: World) -> Manifest:
    found: Manifest = world.job()["spec"]["template"]
    return found


def options(world: World) -> Any:
    return _parse(pod_of(world)["spec"]["containers"][0]["args"])


def egress(world: World) -> list[Manifest]:
    """Beyond DNS."""
    found: list[Manifest] = world.children["NetworkPolicy", "chat-fetch"]["spec"]["egress"]
    return found[1:]


def test_it_is_resolved_downloaded_once_and_served_from_its_claim() -> None:
    world = asked(CACHED | SECRET)
    assert (options(world).uri, options(world).endpoint) == (URI, None)
    assert (options(world).revision, options(world).resolve_only) == ("main", True)
    (volume,) = (v for v in pod_of(world)["spec"]["volumes"] if v["name"] == "hub-token")
    assert volume["secret"]["secretName"] == "reader"
    ends(world, resolved())
    assert (options(world).revision, str(options(world).cache)) == (COMMIT, CLAIM_MOUNT)
    ends(world, said("ModelFetched", COMMIT))
    pool = of(world.children.values(), "EnginePool")["spec"]
    assert pool["modelClaim"] == "chat-model"
    config = world.children["ConfigMap", pool["configRef"]["name"]]["data"]["engine.json"]
    model = json.loads(config)["model"]
    source = bucket(bucket_settings(URI, "main", None, None, {"AWS_SKIP_SIGNATURE": "true"}))
    folder = Cache(Path(CLAIM_MOUNT), source.repository).snapshot_folder(COMMIT)
    assert model == {"name": "qwen3-8b", "uri": f"file://{folder}"}
    assert "reader" not in json.dumps([pool, config]), "engines have no credentials"


def test_what_its_jobs_say_when_they_run_is_what_the_operator_acts_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Job's container runs here, with the claim and the Secret as folders."""
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64}
    config |= {"num_attention_heads": 4, "max_position_embeddings": 512}
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}"}
    files["model.safetensors"] = safetensors(100_000, b"weights")
    (tmp_path / "token").write_text("AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b")
    message = tmp_path / "termination"
    monkeypatch.setenv("SLUICE_TERMINATION_LOG", str(message))
    with serving(Store({f"qwen/qwen3-8b/{name}": body for name, body in files.items()})) as store:
        hub = HubAccess(bucket_endpoint=store.url)
        world = asked(CACHED | SECRET, Installation(hub=hub))
        for _ in range(2):
            message.touch()
            (container,) = pod_of(world)["spec"]["containers"]
            here = {CLAIM_MOUNT: str(tmp_path), TOKEN_FILE: str(tmp_path / "token")}
            arguments = [here.get(argument, argument) for argument in container["args"]]
            assert main(arguments[: arguments.index("--token-file") + 2]) == 0
            ends(world, message.read_text())
    pool = of(world.children.values(), "EnginePool")["spec"]
    engine = world.children["ConfigMap", pool["configRef"]["name"]]["data"]["engine.json"]
    uri = json.loads(engine)["model"]["uri"]
    folder = Path(uri.removeprefix("file://").replace(CLAIM_MOUNT, str(tmp_path)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_a_store_that_speaks_s3_is_asked_at_its_address_and_port() -> None:
    world = asked(CACHED | SECRET, MINIO)
    assert options(world).endpoint == "http://minio.store:9000"
    (rule,) = egress(world)
    assert [port["port"] for port in rule["ports"]] == [443, 9000]
    assert options(asked(CACHED | {"uri": "gs://models/qwen"}, MINIO)).endpoint is None


@pytest.mark.parametrize(
    ("uri", "addresses"),
    [
        (URI, ["169.254.170.23/32"]),
        ("gs://models/qwen", ["169.254.169.254/32", "169.254.169.252/32"]),
        ("az://models/qwen", []),
    ],
)
def test_without_a_secret_the_account_of_the_jobs_is_their_identity(
    uri: str, addresses: list[str]
) -> None:
    world = asked(CACHED | {"uri": uri})
    blocks = [to["ipBlock"]["cidr"] for rule in egress(world) for to in rule.get("to", ())]
    assert blocks == addresses
    assert pod_of(world)["spec"]["serviceAccountName"] == "chat-fetch"
    labelled = "azure.workload.identity/use" in pod_of(world)["metadata"]["labels"]
    assert labelled == uri.startswith("az")
    with_secret = asked(CACHED | SECRET | {"uri": uri})
    assert len(egress(with_secret)) == 1
    labelled = "azure.workload.identity/use" in pod_of(with_secret)["metadata"]["labels"]
    assert labelled == uri.startswith("az"), "its Secret may name the account alone"


def test_no_hub_is_told_the_credentials_of_a_bucket() -> None:
    adapter = {"name": "sql", "uri": "hf://org/sql"}
    world = asked(CACHED | SECRET | {"adapters": [adapter]})
    ends(world, resolved())
    assert options(world).token_file is not None
    ends(world, said("ModelFetched", COMMIT))
    assert options(world).uri == "hf://org/sql"
    assert options(world).token_file is None
    assert options(world).endpoint == "https://huggingface.co"
    assert "hub-token" not in {volume["name"] for volume in pod_of(world)["spec"]["volumes"]}


def test_a_bucket_without_a_cache_is_refused() -> None:
    refusal = service_plan({"model": {"uri": URI}}).refusal
    assert refusal is not None
    assert refusal.field == "spec.model.cache"
    said = "this field is required for a bucket; allowed: a claim or a size"
    assert refusal.message == f"spec.model.cache: {said}"


@pytest.mark.parametrize("revision", ["main", COMMIT, None])
def test_a_bucket_has_main_and_commits(revision: str | None) -> None:
    assert service_plan({"model": CACHED | {"revision": revision}}).refusal is None


@pytest.mark.parametrize("revision", ["v1", "Main", COMMIT[:39], COMMIT.upper().replace("0", "A")])
def test_a_bucket_has_no_branches_and_tags(revision: str) -> None:
    refusal = service_plan({"model": CACHED | {"revision": revision}}).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("InvalidSpec", "spec.model.revision")
    assert "allowed: of a bucket main, or the commit that was resolved" in refusal.message


@pytest.mark.parametrize(
    "uri", ["s3://", "s3://Models/x", "s3://models//x", "s3://models/a b", "gcs://models/x"]
)
def test_what_is_no_bucket_is_refused_with_what_is_allowed(uri: str) -> None:
    refusal = service_plan({"model": CACHED | {"uri": uri}}).refusal
    assert refusal is not None
    assert "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix" in refusal.message
