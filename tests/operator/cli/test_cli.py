"""`sluice plan` and `sluice render`, as a person calls them."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import yaml
from sluice_operator.api.scaling import Slo
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.main import main
from sluice_operator.manifests.slo_rules import slo_groups

from tests.operator.api.documents import document
from tests.operator.model_pods import COMMIT, RESOLVED

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))


LAUGHS = "a0: &a0 [1]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9)
)
"""Aliases of aliases, as a text of 600 characters that stands for 400 million values."""


INSTALLED = Path(sys.executable).with_name("sluice")


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    """The installed command, to its end."""
    command = [str(INSTALLED), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _file(folder: Path, *documents: Any) -> str:
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_carried_out(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(sample)]) == 0
    assert "objects:" in capsys.readouterr().out


def test_rules_are_those_of_the_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promised = document({"slo": {"itlMilliseconds": 50}})
    assert main(["rules", "-f", _file(tmp_path, document({}), promised)]) == 0
    groups = yaml.safe_load(capsys.readouterr().out)["groups"]
    assert groups == slo_groups("default", "chat", Slo.model_validate({"itlMilliseconds": 50}))
    elsewhere = ["--runbook-url-base", "https://wiki/runbooks/"]
    assert main(["rules", "-f", _file(tmp_path, promised), *elsewhere]) == 0
    assert "runbook_url: https://wiki/runbooks/SluiceItlBudgetBurn.md\n" in capsys.readouterr().out
    assert main(["rules", "-f", _file(tmp_path, document({"slo": {}}))]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "spec.slo" in said.err


def test_plan_says_what_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", _file(tmp_path, document({"engine": {"chunkSize": 64}}))]) == 0
    out = capsys.readouterr().out
    assert "served as tiny at http://chat.default.svc" in out
    assert "Pool mixed: replicas 1, each on CPU" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["chunkSize", "64", "User", "spec"] in rows
    assert ["EnginePool", "chat-mixed"] in rows


@pytest.mark.parametrize(
    ("slo", "rows"),
    [
        (None, {}),
        (
            {"itlMilliseconds": 50},
            {"itlMilliseconds": [50, "User", "spec"], "percentile": [95, "General", "default"]},
        ),
        (
            {"itlMilliseconds": 50, "percentile": 99},
            {"itlMilliseconds": [50, "User", "spec"], "percentile": [99, "User", "spec"]},
        ),
    ],
)
def test_plan_shows_the_promise_and_what_it_resolves_to(
    slo: dict[str, int] | None,
    rows: dict[str, list[Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _file(tmp_path, document({"slo": slo} if slo else {}))
    assert main(["plan", "-f", file, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {key: list(entry.values()) for key, entry in found["slo"].items()} == rows
    assert main(["plan", "-f", file]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    for key, row in rows.items():
        assert [f"slo.{key}", *map(str, row)] in words
    assert sum(line[:1] == ["Promise:"] for line in words) == bool(rows)


def test_plan_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", _file(tmp_path, document({})), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["namespace"], found["refusal"]) == ("chat", "default", None)
    assert found["pools"]["mixed"]["settings"]["pageSize"]["value"] == 16
    assert {"kind": "EnginePool", "name": "chat-mixed"} in found["objects"]


@pytest.mark.parametrize(
    ("engine", "options", "image", "assumed"),
    [
        ({}, ["--engine-image", "e:1"], "e:1", True),
        ({"image": "mine:2"}, ["--engine-image", "e:1"], "mine:2", False),
    ],
)
def test_plan_says_of_which_image_the_revision_is(
    engine: dict[str, Any],
    options: list[str],
    image: str,
    assumed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _file(tmp_path, document({"engine": engine}))
    assert main(["plan", "-f", file, "-o", "json", *options]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    pool = found["pools"]["mixed"]
    assert pool["image"] == {"name": image, "assumed": assumed}
    assert {"kind": "Deployment", "name": f"chat-mixed-{pool['revision']}"} in found["objects"]
    assert main(["plan", "-f", file, *options]) == 0
    out = capsys.readouterr().out
    assert f"revision {pool['revision']} of image {image}" in out
    assert (f"Image {image} is assumed" in out) is assumed


def test_render_gives_every_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = document({})
    service["metadata"]["namespace"] = "team"
    options = ["--engine-image", "e:1", "--router-image", "r:1"]
    assert main(["render", "-f", _file(tmp_path, service), *options]) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {m["metadata"]["namespace"] for m in manifests} == {"team"}
    assert not any("ownerReferences" in m["metadata"] for m in manifests)
    images = {
        container["image"]
        for m in manifests
        if m["kind"] == "Deployment"
        for container in m["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"e:1", "r:1"}


def test_render_as_json_is_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", _file(tmp_path, document({})), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "List"


def test_a_paused_service_shows_what_it_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", "-f", _file(tmp_path, document({"paused": True}))]) == 0
    assert "kind: EnginePool" in capsys.readouterr().out


def test_several_services_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    file = _file(tmp_path, document({}, "a"), other, document({}, "b"))
    assert main(["plan", "-f", file, "-o", "json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)] == ["a", "b"]


@pytest.mark.parametrize("command", ["plan", "render"])
def test_several_files_in_their_order(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["one", "two", "three"]
    words = [command]
    for name in names:
        (tmp_path / name).mkdir()
        words += ["-f", _file(tmp_path / name, document({}, name))]
    assert main(words) == 0
    found = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "-mixed" in line]
    places = [next(i for i, word in enumerate(found) if word.startswith(n)) for n in names]
    assert places == sorted(places)


def test_of_several_files_the_unusable_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = _file(tmp_path, document({})), tmp_path / "bad.yaml"
    for text, status in ((yaml.safe_dump(document({"mode": "Both"})), 1), ("kind: Pod", 2)):
        bad.write_text(text)
        assert main(["plan", "-f", good, "-f", str(bad)]) == status
        shown = capsys.readouterr()
        assert str(bad) in shown.err
        assert not shown.out


def test_a_merge_key_and_an_alias_are_no_duplicates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(
        "apiVersion: serving.sluice.dev/v1alpha1\nkind: InferenceService\n"
        "metadata: {name: chat}\nspec:\n"
        "  model: &model {uri: 'dummy://qwen3-tiny', name: a}\n"
        "  engine: {<<: {chunkSize: 64}, chunkSize: 128}\n"
    )
    assert main(["plan", "-f", str(path)]) == 0
    assert "128" in capsys.readouterr().out


def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(document({}))))
    assert main(["plan", "-f", "-"]) == 0
    assert "chat" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "render"])
def test_a_refused_service_fails_and_says_why(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "-f", _file(tmp_path, document({"slo": {"percentile": 90}}))]) == 1
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "would be refused: NotImplemented" in text
    assert "spec.slo: this field is not implemented yet; allowed: a promise: ttft" in text


def test_an_invalid_service_fails_by_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-f", _file(tmp_path, document({"engine": {"tempo": 1}}))]) == 1
    assert "spec.engine.tempo: unknown field" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds nothing; allowed: InferenceService"),
        ("kind: Pod", "holds Pod; allowed: InferenceService"),
        ("a: [", "not YAML"),
        pytest.param(f"a: {'9' * 5000}", "not YAML", id="long number"),
        (
            "a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n",
            "line 5: key 'c' is given again; allowed: once (line 3)",
        ),
        ('a: 1\n---\nb: 1\n"b": 2\n', "line 4: key 'b' is given again; allowed: once (line 3)"),
        ('{"kind": "Pod",\n "kind": "Pod"}', "line 2: key 'kind' is given again"),
        ("a: &x {b: *x}", "aliases stand for more than 100000 values"),
        pytest.param(LAUGHS, "aliases stand for more than 100000 values", id="laughs"),
        pytest.param("- " * 1500, "nested too deeply", id="deep"),
    ],
)
def test_an_unusable_file_fails(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(text)
    assert main(["plan", "-f", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_file_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.process
def test_simulate_is_the_simulators_own_command() -> None:
    done = ended("simulate", "--workload", "rag", "--seconds", "1")
    assert (done.returncode, "TTFT" in done.stdout) == (0, True)
    wrong = ended("simulate", "--trace", "none.csv")
    assert (wrong.returncode, "none.csv" in wrong.stderr) == (2, True)


@pytest.mark.process
def test_a_replay_of_scaling_is_the_simulators_too() -> None:
    words = ("--ramp", "ramp-prefill", "--seconds", "200", "--policy", "static")
    done = ended("autoscale", "replay", *words)
    assert (done.returncode, "ramp-prefill" in done.stdout) == (0, True)
    wrong = ended("autoscale", "replay", "--ramp", "ramp-prefill", "--policy", "best")
    assert wrong.returncode == 2
    assert "--policy: 'best' is not allowed; allowed: ours, hpa" in wrong.stderr


SIMULATING_SECONDS = 2.0
"""Processor time after which all is imported, and far from done."""


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.process
def test_ctrl_c_ends_it_without_a_traceback() -> None:
    words = [str(INSTALLED), "simulate", "--workload", "chatbot", "--policy", "all"]
    running = subprocess.Popen(
        words,
        stdout=PIPE,
        stderr=PIPE,
        process_group=0,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # it may come ignored
    )
    pipes = [pipe for pipe in (running.stdout, running.stderr) if pipe is not None]
    assert len(pipes) == 2
    while processor_seconds(running.pid) < SIMULATING_SECONDS:
        waiting = select.select(pipes, [], [], 0.05)[0]
        assert not waiting, "it was done, or had failed, before it could be interrupted"
    os.killpg(running.pid, signal.SIGINT)
    assert running.communicate(timeout=60) == ("", "")
    assert running.returncode == -signal.SIGINT


def test_simulate_without_the_simulator_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sluice_operator.cli.main.find_spec", lambda name: None)
    for command in (["simulate"], ["autoscale", "replay"]):
        assert main([*command, "--help"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(" ".join(["sluice", *command]))
        assert "in a checkout, scripts/setup or: pip install '.[operator,simulate]'" in said


@pytest.mark.parametrize(
    ("resources", "limit"),
    [({}, None), ({"limits": {"cpu": 1}}, None), ({"limits": {"memory": "2Gi"}}, "2Gi")],
)
def test_plan_says_where_an_engine_would_take_its_nodes_memory(
    resources: dict[str, Any],
    limit: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _file(tmp_path, document({"pools": {"mixed": {"resources": resources}}}))
    assert main(["plan", "-f", file]) == 0
    told = "No memory limit (spec.pools.mixed.resources.limits)" in capsys.readouterr().out
    assert told == (limit is None)
    assert main(["plan", "-f", file, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["pools"]["mixed"]["memoryLimit"] == limit


@pytest.mark.process
def test_the_version_is_that_of_the_package_and_of_the_images_that_are_assumed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ended("--version").stdout == f"sluice {project['version']}\n"
    assert DEFAULT_IMAGES.engine.endswith(f":{project['version']}")


def test_help_lists_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "simulate" in capsys.readouterr().out


@pytest.mark.parametrize(("product", "told"), [("T9", True), ("NVIDIA-A100-SXM4-40GB", False)])
def test_a_product_that_is_not_known_is_said_in_a_plan(
    product: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {"mixed": {"accelerator": {"product": product}, "engine": {"image": "gpu:1"}}}
    found = document({"model": {"uri": "pvc://m/q"}, "pools": pools})
    assert main(["plan", "-f", _file(tmp_path, found)]) == 0
    assert ("ProductUnknown: T9 is not in the table" in capsys.readouterr().out) is told


def test_a_plan_warns_of_a_spelling_in_each_pool_and_of_the_image_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {role: {"accelerator": {"product": "H100"}} for role in ("prefill", "decode")}
    spec = {"model": {"uri": "pvc://m/q"}, "mode": "Disaggregated", "pools": pools}
    assert main(["plan", "-f", _file(tmp_path, document(spec))]) == 0
    out = capsys.readouterr().out
    assert out.count("ProductSpelling: no node is known to say H100") == 2, "one a pool"
    assert out.count("is assumed, since the spec names none") == 1


@pytest.mark.parametrize(("adapters", "times"), [({}, 2), ({"adapters": []}, 0)])
def test_a_plan_warns_in_each_pool_of_settings_that_are_not_read_without_adapters(
    adapters: dict[str, list[Any]], times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {role: {"engine": {"maxLoraRank": 8}} for role in ("prefill", "decode")}
    model = {"uri": "pvc://m/q"} | adapters
    spec = {"model": model, "mode": "Disaggregated", "pools": pools}
    assert main(["plan", "-f", _file(tmp_path, document(spec))]) == 0
    assert capsys.readouterr().out.count("maxLoraRank: 8 is not read without adapters") == times


@pytest.mark.parametrize(("policy", "told"), [("fcfs", True), ("priority", False)])
def test_a_plan_says_where_priorities_of_tenants_change_nothing(
    policy: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auth = {"secretRef": {"name": "keys"}, "tenants": [{"name": "team", "defaultPriority": 5}]}
    asked = document({"engine": {"schedulingPolicy": policy}, "router": {"auth": auth}})
    assert main(["plan", "-f", _file(tmp_path, asked)]) == 0
    says = "Priorities: spec.router.auth.tenants: the priorities of team change no order under"
    assert (f"{says} schedulingPolicy fcfs" in capsys.readouterr().out) is told


def test_a_plan_shows_what_is_off_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {
        "speculation": {"method": "NGram", "tokens": 6},
        "hostCache": {"memory": "1Gi", "disk": {"size": "5Gi"}},
    }
    path = _file(tmp_path, document({"mode": "Disaggregated", "engine": engine}))
    assert main(["plan", "-f", path]) == 0
    out = capsys.readouterr().out
    prefill, decode = out[out.index("Pool prefill") :].split("Pool decode")
    drafts = "Drafts (NGram): at most 6 of a request in a step, from the request's own tokens"
    cache = "Host cache: each engine takes 1Gi more of its node's memory, and 5Gi of its disk"
    assert (drafts in prefill, cache in prefill) == (False, True)
    assert (drafts in decode, cache in decode) == (True, False)
    assert main(["plan", "-f", path, "-o", "json"]) == 0
    (service,) = json.loads(capsys.readouterr().out)
    pools = service["pools"]
    assert pools["prefill"]["hostCache"] == engine["hostCache"]
    assert pools["prefill"]["speculation"] is pools["decode"]["hostCache"] is None
    assert pools["decode"]["speculation"] == engine["speculation"]


def test_a_plan_says_that_a_head_takes_memory_of_the_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafting = {"method": "Eagle", "draft": {"uri": "pvc://heads/a"}}
    assert (
        main(["plan", "-f", _file(tmp_path, document({"engine": {"speculation": drafting}}))]) == 0
    )
    drafts, memory = capsys.readouterr().out.split("  Drafts (Eagle): ")[1].splitlines()[:2]
    assert drafts == "at most 4 of a request in a step, from pvc://heads/a"
    assert memory.strip() == (
        "Its weights and pages take memory that is counted as the KV pool's below."
    )


def test_a_plan_says_how_adapters_of_a_hub_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapters = [{"name": "a", "uri": f"hf://org/a@{COMMIT}"}, {"name": "b", "uri": "file:///b"}]
    model = {"uri": "pvc://models/q", "cache": {"size": "1Gi"}, "adapters": adapters}
    asked = _file(tmp_path, document({"model": model}))
    assert main(["plan", "-f", asked]) == 0
    out = capsys.readouterr().out
    assert f"Adapter a: a Job resolves hf://org/a@{COMMIT} to a commit and" in out
    assert "downloads it to claim chat-model. Engines do not wait for it." in out
    draft = {"speculation": {"method": "Draft", "draft": {"uri": "hf://org/small"}}}
    asked = _file(tmp_path, document({"model": model, "engine": draft}))
    assert main(["plan", "-f", asked]) == 0
    out = capsys.readouterr().out
    assert "Draft model: a Job resolves hf://org/small to a commit and" in out
    assert "downloads it to claim chat-model. Engines wait for it." in out
    assert "Adapter b" not in out
    assert main(["render", "-f", asked]) == 0
    assert f"/mnt/adapters/chat-model/models--org--a/snapshots/{COMMIT}" in capsys.readouterr().out


def test_a_plan_says_how_many_tokens_of_a_resolved_model_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {"mixed": {"accelerator": {"product": "NVIDIA-H100-80GB-HBM3"}}}
    asked = document({"model": {"uri": "hf://org/name"}, "pools": pools})
    assert main(["plan", "-f", _file(tmp_path, asked)]) == 0
    assert "KV pool: tokens that fit are not known: the model is not" in capsys.readouterr().out
    pin = {"uri": "hf://org/name", "revision": "main", **RESOLVED}
    file = _file(tmp_path, asked | {"status": {"model": pin}})
    assert main(["plan", "-f", file]) == 0
    out = capsys.readouterr().out
    assert f"main was resolved to commit {COMMIT}: 16.4 GB, Qwen3ForCausalLM." in out
    assert re.search(r"KV pool: about 3\d\d,\d{3} tokens an engine, 147,456 bytes each", out)
    assert "maxRunningRequests: about 352, which an engine chooses at its start" in out
    assert "Weights are quantised" not in out
    quantised = {"quantization": "awq", "bytes": 6_100_000_000, "parameters": 8_200_000_000}
    awq = _file(tmp_path, asked | {"status": {"model": pin | quantised}})
    assert main(["plan", "-f", awq]) == 0
    out = capsys.readouterr().out
    assert "6.1 GB, Qwen3ForCausalLM." in out
    assert "Weights are quantised (awq) in these files; engines hold" in out
    assert re.search(r"KV pool: about 3\d\d,\d{3} tokens an engine, 147,456 bytes each", out)
    file = _file(tmp_path, asked | {"status": {"model": pin}})
    assert main(["plan", "-o", "json", "-f", file]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["pools"]["mixed"]["kvPool"]["tokenBytes"] == 147_456
    limited = {"mixed": {"resources": {"limits": {"memory": "40Gi"}}}}
    on_cpus = asked | {"spec": asked["spec"] | {"pools": limited}, "status": {"model": pin}}
    assert main(["plan", "-f", _file(tmp_path, on_cpus)]) == 0
    assert "KV pool: at most 136,360 tokens an engine" in capsys.readouterr().out
    unlike = asked | {"status": {"model": pin | {"revision": "v2"}}}
    assert main(["plan", "-f", _file(tmp_path, unlike)]) == 0
    assert "is not resolved yet" in capsys.readouterr().out


def test_without_arguments_it_helps_with_an_example_a_verb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    (verbs,) = set(re.findall(r"\{([\w,]+)\}", text))
    for verb in verbs.split(","):
        assert re.search(rf"^  sluice {verb} ", text, re.MULTILINE), verb
