"""`sluice explain`: sizes and why, what pays by simulated figures, hints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_contract.cluster import labels
from sluice_contract.wire.explain import Answer, Arrangement, Question
from sluice_operator.cli.explain.advice import HINTS, rate_text, verdicts
from sluice_operator.cli.explain.command import run
from sluice_operator.cli.explain.question import ask
from sluice_operator.kube.kinds import Manifest

A100, H100 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"


def rates(
    whole: float, chunked: float, mixed: float, paced: float, apart: float, **more: Any
) -> Answer:
    found = {"whole": whole, "chunked": chunked, "mixed": mixed, "paced": paced, "apart": apart}
    arrangements = [
        {"name": name, "requestsPerSecond": rate, "ttftSeconds": 0.5, "itlSeconds": 0.04}
        for name, rate in found.items()
    ]
    shown = {"costSource": "made up", "kvPoolTokens": 1000, "arrangements": arrangements}
    return Answer.model_validate_json(json.dumps(shown | more))


class Simulator:
    """Answers what it was told to, and notes the questions."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Question] = []

    def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        return self.answer


def written(folder: Path, **spec: Any) -> str:
    path = folder / "service.yaml"
    document = {
        "apiVersion": labels.API_VERSION, "kind": "InferenceService", "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "pvc://models/qwen3-8b"}, **spec},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(document))
    return str(path)


def node(name: str, product: str) -> Manifest:
    labels = {"nvidia.com/gpu.product": product}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }  # fmt: skip


def test_a_product_is_explained_with_sizes_verdicts_and_hints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = Simulator(rates(2, 4, 4, 8, 3, maxRunningRequests=288))
    assert run(["-f", written(tmp_path), "--accelerator", A100], simulator) == 0
    text = capsys.readouterr().out
    (question,) = simulator.asked
    assert (question.cuda_graph_max_batch, question.max_running_requests) == (32, None)
    assert "maxRunningRequests: 288, which an engine chooses at its start" in text
    assert (question.accelerator.product, question.chunk_size) == (A100, 4096)
    assert question.model_names == ("pvc://models/qwen3-8b", "qwen3-8b")
    assert "chunkSize           4096   Product" in text
    assert "chunking: pays from 2 requests/s on" in text
    assert "mixing: makes no difference" in text
    assert "disaggregation: does not pay" in text
    assert "set spec.slo.itlMilliseconds" in text


def test_the_start_that_scaling_assumes_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explained(**more: Any) -> str:
        path = Path(written(tmp_path, autoscaling={"minReplicas": 1, "maxReplicas": 3}))
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | more))
        assert run(["-f", str(path), "--accelerator", A100], Simulator(rates(2, 4, 4, 8, 3))) == 0
        return capsys.readouterr().out

    assert "Scaling assumes that an engine starts in 30 s" in explained()
    start = "mixed: an engine starts in 40.0 s: image 20.0 s, rest 20.0 s"
    assert f"Scaling uses measured starts. {start}\n" in explained(
        status={"scaling": {"start": start}}
    )
    assert "assumes that an engine starts" in explained(status={"scaling": "none"})
    run(["-f", written(tmp_path), "--accelerator", A100], Simulator(rates(2, 4, 4, 8, 3)))
    assert "Scaling" not in capsys.readouterr().out, "nothing is scaled"


def test_what_is_not_simulated_is_said_where_the_spec_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = Simulator(rates(2, 4, 4, 8, 3))
    parts = {"speculation": {"method": "NGram"}, "hostCache": {"memory": "8Gi"}}
    said = {
        (): "not simulated",
        ("speculation",): "speculation is not simulated.",
        ("speculation", "hostCache"): "speculation and hostCache are not simulated.",
    }
    for names, line in said.items():
        file = written(tmp_path, engine={name: parts[name] for name in names})
        assert run(["-f", file, "--accelerator", A100], simulator) == 0
        assert (line in capsys.readouterr().out) == bool(names)


def test_the_simulated_promise_is_shown_and_whether_it_is_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raised = {"ttftSeconds": 1.0, "itlSeconds": 0.127, "share": 0.95, "assumed": ["itl"]}
    simulator = Simulator(rates(2, 4, 4, 8, 3, promise=raised))
    assert run(["-f", written(tmp_path), "--accelerator", A100], simulator) == 0
    assert simulator.asked[0].promise.assumed == ("ttft", "itl")
    text = capsys.readouterr().out
    assert "first token in 1 s, 127 ms between tokens." in text
    assert "The spec has no spec.slo.itlMilliseconds: assumed for this simulation alone." in text


def test_the_specs_running_requests_are_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = Simulator(rates(2, 4, 4, 8, 3, maxRunningRequests=9))
    file = written(tmp_path, engine={"maxRunningRequests": 9})
    assert run(["-f", file, "--accelerator", A100], simulator) == 0
    assert simulator.asked[0].max_running_requests == 9
    text = capsys.readouterr().out
    assert "maxRunningRequests  9      User" in text
    assert "which an engine chooses" not in text


def test_json_has_the_same_and_the_promise_is_the_services(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = Simulator(rates(2, 4, 4, 8, 3))
    file = written(tmp_path, slo={"itlMilliseconds": 30, "percentile": 90})
    words = ["-f", file, "--accelerator", H100, "--prompt-tokens", "50", "-o", "json"]
    assert run(words, simulator) == 0
    shown = json.loads(capsys.readouterr().out)
    promise = {"ttftSeconds": 1.0, "itlSeconds": 0.03, "share": 0.9, "assumed": ["ttft"]}
    assert shown["promise"] == promise
    assert shown["requests"] == {"promptTokens": 50, "answerTokens": 211}
    pool = shown["pools"]["mixed"]
    assert pool["settings"]["chunkSize"] == {
        "value": 8192, "source": "Product", "from": "H100 TP1",
    }  # fmt: skip
    assert [each["subject"] for each in pool["verdicts"]] == [
        "chunking", "mixing", "slo.itlMilliseconds", "disaggregation",
    ]  # fmt: skip
    assert "PromiseItl" not in [hint["name"] for hint in pool["hints"]]


def test_pools_land_on_the_nodes_of_a_file_and_equal_ones_are_simulated_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(yaml.safe_dump({"kind": "List", "items": [node("a", A100), node("h", H100)]}))
    simulator = Simulator(rates(2, 4, 4, 8, 9))
    file = written(tmp_path, accelerator={}, prefill={"accelerator": {"product": H100}})
    assert run(["-f", file, "--nodes", str(nodes)], simulator) == 0
    text = capsys.readouterr().out
    assert "Pool prefill: each engine on 1 x NVIDIA-H100-80GB-HBM3" in text
    assert "SmallestOfSeveral: The pool can land on" in text
    assert "write one of" not in text
    assert len(simulator.asked) == 2
    run(["-f", file, "--accelerator", A100], simulator)
    assert len(simulator.asked) == 3, "both pools are alike now"
    assert "write one of" not in capsys.readouterr().out
    run(["-f", file, "--accelerator", "H100"], simulator)
    assert f"write one of {H100}" in capsys.readouterr().out


def test_a_model_of_a_hub_is_explained_as_if_it_were_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"uri": "hf://Qwen/Qwen3-8B", "revision": "main", "name": "q"}
    simulator = Simulator(rates(2, 4, 4, 8, 3))
    assert run(["-f", written(tmp_path, model=model), "--accelerator", A100], simulator) == 0
    assert "not implemented yet" not in capsys.readouterr().out
    assert simulator.asked[0].model_names == ("hf://Qwen/Qwen3-8B", "q")
    wrong = written(tmp_path, model={"uri": "ftp://x"})
    assert run(["-f", wrong, "--accelerator", A100], simulator) == 1
    assert "spec.model.uri" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--nodes", "/nowhere"], 2, "--nodes: \"/nowhere\" is not allowed"),
        (["--model-config", "/nowhere"], 2, "--model-config"),
        (["--accelerator", "no/label"], 1, "spec.accelerator.product"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(
    words: list[str], status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-f", written(tmp_path), *words], Simulator(rates(1, 1, 1, 1, 1))) == status
    assert says in capsys.readouterr().err


def test_a_file_without_nodes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("kind: List\nitems: [{kind: Pod}]\n")
    words = ["-f", written(tmp_path), "--nodes", str(other)]
    assert run(words, Simulator(rates(1, 1, 1, 1, 1))) == 2
    assert "kubectl get nodes -o yaml" in capsys.readouterr().err


def test_a_pool_on_cpus_is_not_simulated_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-f", written(tmp_path)], ask) == 0
    assert "Not simulated: no figures for CPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("figures", "reasons"),
    [
        ((0, 0, 0, 0, 0), ["NoDifference"] * 4),
        ((10, 10.5, 10, 10.9, 10), ["NoDifference"] * 4),
        ((0, 3, 3, 3, 3), ["Pays", "NoDifference", "NoDifference", "NoDifference"]),
        ((5, 4, 8, 6, 9), ["Costs", "Pays", "Costs", "Pays"]),
        ((1, 1, 1, 9, 5), ["NoDifference", "NoDifference", "Pays", "Costs"]),
    ],
)
def test_a_verdict_follows_from_two_rates(
    figures: tuple[float, float, float, float, float], reasons: list[str]
) -> None:
    assert [each.reason for each in verdicts(rates(*figures))] == reasons
    assert verdicts(Answer(cost_source="", kv_pool_tokens=0, missing="none")) == ()


def test_hints_have_names_of_their_own() -> None:
    assert len({hint.name for hint in HINTS}) == len(HINTS)


@pytest.mark.parametrize(
    ("name", "product", "packed"),
    [
        ("Qwen3-8B-FP8", A100, True),
        ("Qwen3-8B", A100, False),
        ("Qwen3-8B-FP8", "Tesla-T4", False),
        ("Qwen3-8B-GPTQ-tuned", H100, True),
    ],
)
def test_weights_that_stay_packed_have_a_kernel_that_has_not_run_on_a_gpu(
    name: str, product: str, packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, model={"uri": f"pvc://models/{name}"})
    assert run(["-f", file, "--accelerator", product], Simulator(rates(2, 4, 4, 8, 3))) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("packed weights has not run on a GPU: its speed is unknown" in text) == packed
    assert "this version ran on one H200" in text


@pytest.mark.process
def test_the_simulator_is_asked_as_a_program_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, slo={"itlMilliseconds": 50})
    assert run(["-f", file, "--accelerator", A100, "--answer-tokens", "40"]) == 0
    text = capsys.readouterr().out
    assert "Qwen3-8B on 1 x A100-40GB" in text
    assert "slo.itlMilliseconds: pays" in text


def test_arrangements_of_the_answer_are_those_that_are_shown() -> None:
    from sluice_operator.cli.explain.shown import ARRANGED

    assert set(ARRANGED) == set(Arrangement.model_fields["name"].annotation.__args__)  # type: ignore[union-attr]


def test_a_hand_over_without_two_pools_is_refused_on_a_product_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, engine={"kvTransfer": {}})
    assert run(["-f", file, "--accelerator", A100], Simulator(rates(1, 1, 1, 1, 1))) == 1
    assert "only beside spec.prefill, with two pools" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-f", "nofile.yaml"], Simulator(rates(1, 1, 1, 1, 1))) == 2
    assert capsys.readouterr().err == "nofile.yaml: No such file or directory\n"


def test_large_rates_are_plain_numbers() -> None:
    assert [rate_text(rate) for rate in (0.5, 8.444, 999.4, 999.9, 4280.4)] == [
        "0.5", "8.44", "999", "1,000", "4,280",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "answer", "text"),
    [
        (
            {},
            rates(2, 4, 4, 4, 9),
            "add `prefill: {}`: two pools bear more of these requests with as many GPUs",
        ),
        (
            {"prefill": {}},
            rates(2, 4, 4, 9, 4),
            "leave out spec.prefill: one pool bears more of these requests",
        ),
        (
            {"prefill": {"engine": {"mixedChunk": False}}},
            rates(2, 4, 9, 9, 4),
            "leave out spec.prefill.engine.mixedChunk: running requests wait",
        ),
        (
            {"prefill": {}, "engine": {"chunkSize": -1}},
            rates(2, 4, 9, 9, 4),
            "leave out spec.engine.chunkSize: whole prompts hold up",
        ),
    ],
)
def test_advice_names_fields_that_there_are(
    parts: Manifest,
    answer: Answer,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = written(tmp_path, **parts)
    assert run(["-f", file, "--accelerator", A100], Simulator(answer)) == 0
    shown = capsys.readouterr().out
    assert text in " ".join(shown.split())
    assert "mode " not in shown.partition("Hints")[2]


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"accelerator": "A100"}, "spec.accelerator"),
        ({"accelerator": [A100]}, "spec.accelerator"),
        ({"prefill": {"accelerator": "A100"}}, "spec.prefill.accelerator"),
        ({"template": "a"}, "spec.template"),
        ({"template": {"nodeSelector": "a"}}, "spec.template.nodeSelector"),
        ({"prefill": {"template": ["a"]}}, "spec.prefill.template"),
        ({"prefill": "a"}, "spec.prefill"),
        ({"prefill": None}, "spec.prefill"),
    ],
)
def test_a_part_of_a_wrong_type_is_refused_on_a_product_too(
    parts: Manifest, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = Simulator(rates(1, 1, 1, 1, 1))
    assert run(["-f", written(tmp_path, **parts), "--accelerator", A100], simulator) == 1
    assert f"{field}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "prefill",
    [
        {"accelerator": {}},
        {"accelerator": {"product": "x", "count": 2}},
        {"template": {"nodeSelector": {"pool": "b"}}},
        {"accelerator": {}, "template": {}},
    ],
)
def test_each_pool_lands_on_a_node_of_the_product(
    prefill: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = {"accelerator": {"count": 4}, "template": {"nodeSelector": {"pool": "a"}}}
    file = written(tmp_path, **top, prefill=prefill)
    words = ["-f", file, "--accelerator", A100, "-o", "json"]
    assert run(words, Simulator(rates(1, 1, 1, 1, 1))) == 0
    pools = json.loads(capsys.readouterr().out)["pools"]
    count = prefill.get("accelerator", top["accelerator"]).get("count", 1)
    assert [pool["accelerator"] for pool in pools.values()] == [
        f"{count} x {A100}", f"4 x {A100}",
    ]  # fmt: skip
    assert {pool["verified"]["reason"] for pool in pools.values()} == {"NodeLabels"}
