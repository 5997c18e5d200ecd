"""`sluice`, as a person calls it: files, `render`, help, and commands of the simulator."""

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

import pytest
import yaml
from sluice_operator.api.scaling import Slo
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.main import main
from sluice_operator.manifests.monitoring import slo_groups

from tests.operator.api.documents import document, spec_file

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


def test_rules_are_those_of_the_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promised = document({"slo": {"itlMilliseconds": 50}})
    assert main(["rules", "-f", spec_file(tmp_path, document({}), promised)]) == 0
    groups = yaml.safe_load(capsys.readouterr().out)["groups"]
    assert groups == slo_groups("default", "chat", Slo.model_validate({"itlMilliseconds": 50}))
    elsewhere = ["--runbook-url-base", "https://wiki/runbooks/"]
    assert main(["rules", "-f", spec_file(tmp_path, promised), *elsewhere]) == 0
    assert "runbook_url: https://wiki/runbooks/SluiceItlBudgetBurn.md\n" in capsys.readouterr().out
    assert main(["rules", "-f", spec_file(tmp_path, document({"slo": {}}))]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "spec.slo" in said.err


def test_render_gives_every_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = document({})
    service["metadata"]["namespace"] = "team"
    options = ["--engine-image", "e:1", "--router-image", "r:1"]
    assert main(["render", "-f", spec_file(tmp_path, service), *options]) == 0
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
    assert main(["render", "-f", spec_file(tmp_path, document({})), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "List"


def test_a_paused_service_shows_what_it_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", "-f", spec_file(tmp_path, document({"paused": True}))]) == 0
    assert "kind: EnginePool" in capsys.readouterr().out


def test_several_services_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    file = spec_file(tmp_path, document({}, "a"), other, document({}, "b"))
    assert main(["plan", "-f", file, "-o", "json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)] == ["a", "b"]


@pytest.mark.parametrize("command", ["plan", "render"])
def test_several_files_in_their_order(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["one", "two", "three"]
    words = [command, "-v"] if command == "plan" else [command]
    for name in names:
        (tmp_path / name).mkdir()
        words += ["-f", spec_file(tmp_path / name, document({}, name))]
    assert main(words) == 0
    out = capsys.readouterr().out
    found = [name for line in out.splitlines() for name in names if f"{name}-mixed" in line]
    assert list(dict.fromkeys(found)) == names


def test_of_several_files_the_unusable_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = spec_file(tmp_path, document({})), tmp_path / "bad.yaml"
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
    assert main([command, "-f", spec_file(tmp_path, document({"slo": {"percentile": 90}}))]) == 1
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "would be refused: NotImplemented" in text
    assert "spec.slo: this field is not implemented yet; allowed: a promise: ttft" in text


def test_an_invalid_service_fails_by_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-f", spec_file(tmp_path, document({"engine": {"tempo": 1}}))]) == 1
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
def test_serve_is_the_engines_own_command() -> None:
    wrong = ended("serve", "dummy://qwen3-tiny", "--set", "chunkSizes=3")
    assert wrong.returncode != 0
    assert "chunkSizes: unknown field; did you mean chunkSize?" in wrong.stderr


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


@pytest.mark.parametrize(
    ("command", "setup", "extras"),
    [
        (["simulate"], "scripts/setup", "simulate"),
        (["autoscale", "replay"], "scripts/setup", "simulate"),
        (["serve"], "scripts/setup --serve", "engine,fetch"),
    ],
)
def test_a_program_that_is_not_installed_names_the_extra(
    command: list[str],
    setup: str,
    extras: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sluice_operator.cli.main.find_spec", lambda name: None)
    assert main([*command, "--help"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(" ".join(["sluice", *command]))
    assert f"in a checkout, {setup} or: pip install '.[operator,{extras}]'" in said


@pytest.mark.process
def test_the_version_is_that_of_the_package_and_of_the_images_that_are_assumed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ended("--version").stdout == f"sluice {project['version']}\n"
    assert DEFAULT_IMAGES.engine.endswith(f":{project['version']}")


def test_help_lists_simulate_and_what_rollout_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "simulate" in text
    assert "roll-outs in a cluster: status, history, undo, restart, promote, abort;" in text


@pytest.mark.parametrize("command", ["promote", "abort"])
def test_help_says_what_a_refused_decision_returns(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["rollout", command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"1 where .*a decision about a canary is refused \(nothing changes\)", text)


def test_without_arguments_it_helps_with_an_example_a_verb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    (verbs,) = set(re.findall(r"\{([\w,]+)\}", text))
    for verb in verbs.split(","):
        assert re.search(rf"^  sluice {verb} ", text, re.MULTILINE), verb
