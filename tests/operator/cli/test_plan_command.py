"""What `sluice plan` says of a service, and of what would surprise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.cli.main import main

from tests.operator.api.documents import document, spec_file
from tests.operator.model_pods import COMMIT, RESOLVED

ROOT = Path(__file__).parents[3]


SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_carried_out(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(sample)]) == 0
    assert "objects; -v names them." in capsys.readouterr().out


def test_plan_says_what_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = spec_file(tmp_path, document({"engine": {"chunkSize": 64}}))
    assert main(["plan", "-v", "-f", file]) == 0
    out = capsys.readouterr().out
    assert "served as tiny at http://chat.default.svc" in out
    assert "Pool mixed: replicas 1, each on CPU" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["chunkSize", "64", "User", "spec.engine"] in rows
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
    file = spec_file(tmp_path, document({"slo": slo} if slo else {}))
    assert main(["plan", "-f", file, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {key: list(entry.values()) for key, entry in found["slo"].items()} == rows
    assert main(["plan", "-f", file]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    for key, row in rows.items():
        assert [f"slo.{key}", *map(str, row)] in words
    assert sum(line[:1] == ["Promise:"] for line in words) == bool(rows)


def test_plan_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", spec_file(tmp_path, document({})), "-o", "json"]) == 0
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
    file = spec_file(tmp_path, document({"engine": engine}))
    assert main(["plan", "-f", file, "-o", "json", *options]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    pool = found["pools"]["mixed"]
    assert pool["image"] == {"name": image, "assumed": assumed}
    assert {"kind": "Deployment", "name": f"chat-mixed-{pool['revision']}"} in found["objects"]
    assert main(["plan", "-f", file, *options]) == 0
    out = capsys.readouterr().out
    assert f"revision {pool['revision']} of image {image}" in out
    assert (f"Image {image} is assumed" in out) is assumed


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
    file = spec_file(tmp_path, document({"resources": resources}))
    assert main(["plan", "-f", file]) == 0
    told = "No memory limit (spec.resources.limits)" in capsys.readouterr().out
    assert told == (limit is None)
    assert main(["plan", "-f", file, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["pools"]["mixed"]["memoryLimit"] == limit


@pytest.mark.parametrize(("product", "told"), [("T9", True), ("NVIDIA-A100-SXM4-40GB", False)])
def test_a_product_that_is_not_known_is_said_in_a_plan(
    product: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = {"accelerator": {"product": product}, "engine": {"image": "gpu:1"}}
    found = document({"model": {"uri": "pvc://m/q"}, **pool})
    assert main(["plan", "-f", spec_file(tmp_path, found)]) == 0
    assert ("ProductUnknown: T9 is not in the table" in capsys.readouterr().out) is told


def test_a_plan_warns_of_a_spelling_in_each_pool_and_of_the_image_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"model": {"uri": "pvc://m/q"}, "accelerator": {"product": "H100"}, "prefill": {}}
    assert main(["plan", "-f", spec_file(tmp_path, document(spec))]) == 0
    out = capsys.readouterr().out
    text = "ProductSpelling: no GPU labels itself H100 (nvidia.com/gpu.product); write one of "
    assert out.count(text) == 2, "one a pool"
    assert out.count("is assumed, since the spec names none") == 1


def plan_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: Any) -> str:
    assert main(["plan", "-f", spec_file(tmp_path, document(spec))]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "assumed"),
    [
        ({"engine": {"image": "a/b:1"}, "prefill": {}}, []),
        ({"engine": {"image": "a/b:1"}, "prefill": {"engine": {"image": "a/b:2"}}}, []),
        ({"prefill": {"engine": {"image": "a/b:1"}}}, ["sluice/engine"]),
        ({"prefill": {}}, ["sluice/engine"]),
    ],
)
def test_an_image_that_a_pool_names_is_not_assumed(
    spec: Any, assumed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = plan_text(tmp_path, capsys, spec)
    images = re.findall(r"^Image (\S+) is assumed", out, re.MULTILINE)
    assert [image.partition(":")[0] for image in images] == assumed
    assert main(["plan", "-f", spec_file(tmp_path, document(spec)), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    is_assumed = {
        pool["image"]["name"]: pool["image"]["assumed"] for pool in found["pools"].values()
    }
    assert sorted(name for name, value in is_assumed.items() if value) == images


LIMITS = {"minReplicas": 1, "maxReplicas": 3}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, True),
        ({"prefill": {}}, True),
        ({"prefill": {"autoscaling": LIMITS}}, True),
        ({"replicas": 1, "prefill": {"autoscaling": LIMITS}}, False),
        ({"autoscaling": LIMITS}, False),
        ({"autoscaling": LIMITS, "prefill": {"replicas": 2}}, False),
    ],
)
def test_an_autoscaler_of_the_service_is_told_what_it_needs(
    spec: Any, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = plan_text(tmp_path, capsys, spec)
    assert ("HorizontalPodAutoscaler of this InferenceService needs it" in out) is told


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"autoscaling": LIMITS}, "replicas 1 to 3 as the load asks, 1 at first, each"),
        (
            {"autoscaling": LIMITS | {"provider": "External"}},
            "replicas 1 at first, then as whoever scales EnginePool chat-mixed decides, each",
        ),
        (
            {"replicas": 2, "autoscaling": {"provider": "External"},
             "prefill": {"autoscaling": LIMITS}},
            "Pool prefill: replicas 1 at first, then as whoever scales EnginePool chat-prefill",
        ),
        (
            {"replicas": 2, "prefill": {"replicas": 0}},
            "  No engine computes prompts, so no request is answered.",
        ),
    ],
)  # fmt: skip
def test_a_plan_says_who_decides_the_numbers_and_what_follows(
    spec: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in plan_text(tmp_path, capsys, spec)


@pytest.mark.parametrize(
    ("replicas", "steps"),
    [(4, "5 % on 1 engine more, 25 % on 2, 50 % on 4"), (40, "5 % on 3 engines more, 25 % on 14")],
)
def test_a_plan_says_what_engines_the_steps_of_a_canary_take(
    replicas: int, steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = {"rollout": {"canary": {"steps": [5, 25, 50]}}, "replicas": replicas}
    text = plan_text(tmp_path, capsys, canary)
    assert f"  Pool mixed: {steps}" in text
    assert ", then all" in text
    assert "gpuBudget" not in text
    assert "Canary" not in plan_text(tmp_path, capsys, {"replicas": replicas})


@pytest.mark.parametrize(
    ("canary", "texts"),
    [
        (
            {"steps": [5], "minutes": 20},
            [
                "Judged by errors: no worse by more than 2 percent points",
                "Late answers are not judged: spec.slo.ttftMilliseconds is not set",
            ],
        ),
        ({"judge": {"errors": False, "slo": False}}, ["A person decides about each step"]),
        ({"judge": {"slo": False, "marginPoints": 5}}, ["by more than 0.5 percent points"]),
        (
            {"judge": {"errors": False}},
            [
                "A person decides about each step (sluice rollout promote, abort). The speed of\n"
                "  steps is judged: a slower revision is worse (onWorse: Halt).",
                "Late answers are not judged: spec.slo.ttftMilliseconds is not set",
            ],
        ),
    ],
)
def test_a_plan_says_what_a_canary_is_judged_by(
    canary: dict[str, Any], texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = plan_text(tmp_path, capsys, {"rollout": {"canary": canary}})
    assert [text for text in texts if text not in out] == []
    assert ("Late answers" in out) is (len(texts) == 2)


@pytest.mark.parametrize(
    ("minutes", "routers", "lines"),
    [
        (
            5,
            2,
            "each step of 5 minutes takes about\n"
            "    10 %: 43,596 chats of the new revision, which are\n"
            "      87,192 new chats a minute of the whole service (2 routers);\n"
            "      below 8,720 a minute: CanaryStalled after 50 minutes\n",
        ),
        (
            2,
            1,
            "each step of 2 minutes takes about\n"
            "    10 %: 21,798 chats of the new revision, which are\n"
            "      108,990 new chats a minute of the whole service (1 router);\n"
            "      below 10,899 a minute: CanaryStalled after 20 minutes\n",
        ),
    ],
)
def test_a_plan_says_how_many_chats_a_canary_takes(
    minutes: int, routers: int, lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = {"minutes": minutes, "judge": {"marginPoints": 1}}
    spec = {"rollout": {"canary": canary}, "router": {"replicas": routers}}
    assert lines in plan_text(tmp_path, capsys, spec)


def test_a_plan_as_json_has_the_trials_of_each_step_and_the_keys_that_bring_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {
        "replicas": 4,
        "slo": {"ttftMilliseconds": 500},
        "rollout": {"canary": {"steps": [5, 50], "minutes": 20}},
    }
    assert main(["plan", "-f", spec_file(tmp_path, document(spec)), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    canary = found["canary"]
    assert (canary["signals"], canary["minutes"]) == (["errors", "slo"], 20)
    assert canary["routers"] == 2
    assert [step["engines"] for step in canary["steps"]] == [{"mixed": 1}, {"mixed": 4}]
    for step in canary["steps"]:
        assert step["keysPerMinute"] == -(-step["keys"] * 100 // (20 * step["percent"]))
        assert step["keys"] > 500
    assert main(["plan", "-f", spec_file(tmp_path, document({})), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["canary"] is None


@pytest.mark.parametrize(("gpus", "waits"), [(8, True), (9, True), (10, False)])
def test_a_plan_warns_where_the_budget_has_no_room_for_a_canary(
    gpus: int, waits: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {
        "accelerator": {"resourceName": "nvidia.com/gpu", "count": 2},
        "autoscaling": {"gpuBudget": gpus, "minReplicas": 4, "maxReplicas": 4},
        "rollout": {"canary": {}},
    }
    text = plan_text(tmp_path, capsys, spec)
    assert "  Pool mixed: 10 % on 1 engine more, then all" in text
    warning = f"gpuBudget is {gpus}: all engines hold 8, and a canary\n  needs 2"
    assert (warning in text) is waits


@pytest.mark.parametrize("replicas", [0, 1])
def test_no_prompts_are_computed_only_where_others_decode(
    replicas: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"replicas": replicas, "prefill": {"replicas": 0}}
    assert ("No engine computes" in plan_text(tmp_path, capsys, spec)) is bool(replicas)


@pytest.mark.parametrize(("adapters", "times"), [({}, 2), ({"adapters": []}, 0)])
def test_a_plan_warns_in_each_pool_of_settings_that_are_not_read_without_adapters(
    adapters: dict[str, list[Any]], times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"uri": "pvc://m/q"} | adapters
    spec = {"model": model, "engine": {"maxLoraRank": 8}, "prefill": {}}
    assert main(["plan", "-f", spec_file(tmp_path, document(spec))]) == 0
    assert capsys.readouterr().out.count("maxLoraRank: 8 is not read without adapters") == times


@pytest.mark.parametrize(("policy", "told"), [("fcfs", True), ("priority", False)])
def test_a_plan_says_where_priorities_of_tenants_change_nothing(
    policy: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auth = {"secretRef": {"name": "keys"}, "tenants": [{"name": "team", "defaultPriority": 5}]}
    asked = document({"engine": {"schedulingPolicy": policy}, "router": {"auth": auth}})
    assert main(["plan", "-f", spec_file(tmp_path, asked)]) == 0
    says = "Priorities: spec.router.auth.tenants: the priorities of team change no order under"
    assert (f"{says} schedulingPolicy fcfs" in capsys.readouterr().out) is told


def test_a_plan_shows_what_is_off_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {
        "speculation": {"method": "NGram", "tokens": 6},
        "hostCache": {"memory": "1Gi", "disk": {"size": "5Gi"}},
    }
    path = spec_file(tmp_path, document({"engine": engine, "prefill": {}}))
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
        main(["plan", "-f", spec_file(tmp_path, document({"engine": {"speculation": drafting}}))])
        == 0
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
    asked = spec_file(tmp_path, document({"model": model}))
    assert main(["plan", "-f", asked]) == 0
    out = capsys.readouterr().out
    assert f"Adapter a: a Job resolves hf://org/a@{COMMIT} to a commit and" in out
    assert "downloads it to claim chat-model. Engines do not wait for it." in out
    draft = {"speculation": {"method": "Draft", "draft": {"uri": "hf://org/small"}}}
    asked = spec_file(tmp_path, document({"model": model, "engine": draft}))
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
    gpu = {"product": "NVIDIA-H100-80GB-HBM3"}
    asked = document({"model": {"uri": "hf://org/name"}, "accelerator": gpu})
    assert main(["plan", "-f", spec_file(tmp_path, asked)]) == 0
    assert "KV pool: tokens that fit are not known: the model is not" in capsys.readouterr().out
    pin = {"uri": "hf://org/name", "revision": "main", **RESOLVED}
    file = spec_file(tmp_path, asked | {"status": {"model": pin}})
    assert main(["plan", "-f", file]) == 0
    out = capsys.readouterr().out
    assert f"main was resolved to commit {COMMIT}: 16.4 GB, Qwen3ForCausalLM." in out
    assert re.search(r"KV pool: about 3\d\d,\d{3} tokens an engine, 147,456 bytes each", out)
    assert "maxRunningRequests: about 352, which an engine chooses at its start" in out
    assert "Weights are quantised" not in out
    quantised = {"quantization": "awq", "bytes": 6_100_000_000, "parameters": 8_200_000_000}
    awq = spec_file(tmp_path, asked | {"status": {"model": pin | quantised}})
    assert main(["plan", "-f", awq]) == 0
    out = capsys.readouterr().out
    assert "6.1 GB, Qwen3ForCausalLM." in out
    assert "Weights are quantised (awq) in these files.\n  Engines hold them in their dtype" in out
    assert re.search(r"KV pool: about 3\d\d,\d{3} tokens an engine, 147,456 bytes each", out)
    part = {"gpus": 1, "bytes": 4_300_000_000, "values": 1_000_000_000}
    packed = quantised | {"packedParts": [part]}
    awq = spec_file(tmp_path, asked | {"status": {"model": pin | packed}})
    assert main(["plan", "-f", awq]) == 0
    out = capsys.readouterr().out
    assert "compute capability 8.0 they stay packed: 6.3 GB." in out
    assert re.search(r"KV pool: about 4\d\d,\d{3} tokens an engine, 147,456 bytes each", out)
    file = spec_file(tmp_path, asked | {"status": {"model": pin}})
    assert main(["plan", "-o", "json", "-f", file]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["pools"]["mixed"]["kvPool"]["tokenBytes"] == 147_456
    limited = {"resources": {"limits": {"memory": "40Gi"}}, "model": asked["spec"]["model"]}
    on_cpus = asked | {"spec": limited, "status": {"model": pin}}
    assert main(["plan", "-f", spec_file(tmp_path, on_cpus)]) == 0
    assert "KV pool: at most 136,360 tokens an engine" in capsys.readouterr().out
    unlike = asked | {"status": {"model": pin | {"revision": "v2"}}}
    assert main(["plan", "-f", spec_file(tmp_path, unlike)]) == 0
    assert (
        "the model is not among the published models that this command knows; whether"
        in capsys.readouterr().out
    )
