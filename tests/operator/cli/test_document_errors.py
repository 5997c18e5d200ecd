"""What `sluice plan` and `sluice render` say of files with mistakes: all, where, a line each."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.cli.main import main

from tests.operator.api.documents import document

PAGE = "-1 (off) or at least pageSize (16 when left out)"
KV_POOL = "spec.engine.kvPoolTokens: 1000 is not allowed; allowed: a multiple of pageSize (16), as "
KV_POOL += "992 or 1008"
MORE = "(more is checked once this is right)"
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}

# A spec, and all that is said of it: the end of the first line, and the lines below.
SCALED = {"minReplicas": 1, "maxReplicas": 8}
SPECS: list[tuple[dict[str, Any], str, list[str]]] = [
    (
        {"engine": {"tempo": 1, "dtype": "int3"}},
        "invalid InferenceService",
        [
            "spec.engine.tempo: unknown field; allowed: ",
            "spec.engine.dtype: ",
            MORE,
        ],
    ),
    (
        {
            "slo": {"itlMilliseconds": 50},
            "engine": {"chunkSize": -1, "mixedChunk": False},
        },
        "invalid InferenceService",
        [
            "spec.engine.chunkSize: -1 is not allowed; allowed: at least pageSize, as "
            "slo.itlMilliseconds is set",
            "spec.engine.mixedChunk: false is not allowed; allowed: true, as slo.itlMilliseconds "
            "is set",
        ],
    ),
    (
        {"engine": {"cudaGraphMaxBatch": 8}, "slo": {"percentile": 90}},
        "would be refused: NotImplemented",
        [
            "spec.slo: this field is not implemented yet; allowed: a promise: ttft",
            "spec.engine.cudaGraphMaxBatch: 8 is not allowed; allowed: 0",
        ],
    ),
    (
        {"replicas": 2, "autoscaling": SCALED | {"gpuBudget": 8}},
        "invalid InferenceService",
        [
            "spec.replicas: 2 is not allowed; allowed: replicas, or minReplicas and maxReplicas",
            "spec.autoscaling.gpuBudget: 8 is not allowed; allowed: only beside spec.accelerator",
        ],
    ),
    (
        {"autoscaling": {}},
        "invalid InferenceService",
        [
            "spec.autoscaling: this field is not allowed, as no pool is scaled; allowed: with",
        ],
    ),
    (
        {"model": {"uri": "ftp://x"}, "engine": {"chunkSize": 10, "kvPoolTokens": 1000}},
        "invalid InferenceService",
        [
            'spec.model.uri: "ftp://x" is not allowed; allowed: hf://org/name, s3://bucket/prefix',
            f"spec.engine.chunkSize: 10 is not allowed; allowed: {PAGE}",
            KV_POOL,
        ],
    ),
    (
        {
            "slo": {"percentile": 90},
            "engine": {"kvPoolTokens": 1000, "tensorParallelSize": 2},
        },
        "invalid InferenceService",
        [
            KV_POOL,
            "spec.slo: this field is not implemented yet; allowed: a promise: ttft",
            "spec.engine.tensorParallelSize: 2 is not allowed; allowed: 1 without",
        ],
    ),
]


def _write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


@pytest.mark.parametrize("command", ["plan", "render"])
@pytest.mark.parametrize(("spec", "what", "below"), SPECS)
def test_each_mistake_has_its_line_and_its_entry_in_json(
    command: str,
    spec: dict[str, Any],
    what: str,
    below: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = _write(tmp_path / "x.yaml", document(spec))
    assert main([command, "-f", file]) == 1
    shown = capsys.readouterr()
    assert not shown.out
    first, *rest = shown.err.splitlines()
    assert first == f"{file}: {what}"
    assert len(rest) == len(below)
    for line, begin in zip(rest, below, strict=True):
        assert line.startswith(f"  {begin}")
    assert main([command, "-f", file, "-o", "json"]) == 1
    shown = capsys.readouterr()
    (found,) = json.loads(shown.out if command == "plan" else shown.err)
    assert (found["file"], found["document"], found["name"]) == (file, None, "chat")
    findings = found["refusal"]["findings"]
    assert len(findings) == len([line for line in below if line != MORE])
    for finding, begin in zip(findings, below, strict=False):
        assert set(finding) == {"field", "message"}
        assert f"{finding['field']}: {finding['message']}".startswith(begin)


def test_every_document_of_every_file_is_checked_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, worse = {"rollout": {"strategy": "Both"}}, {"engine": {"kvPoolTokens": 1000}}
    two = _write(
        tmp_path / "two.yaml", document(bad), CONFIG_MAP, document(worse, "b"), document({}, "c")
    )
    one = _write(tmp_path / "one.yaml", document(bad, "d"))
    nameless = _write(tmp_path / "nameless.yaml", CONFIG_MAP, {"kind": "InferenceService"})
    assert main(["plan", "-f", two, "-f", one, "-f", nameless]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        f"{two}, document 1 (chat): invalid InferenceService",
        f"{two}, document 3 (b): invalid InferenceService",
        f"{one}: invalid InferenceService",
        f"{nameless}, document 2: invalid InferenceService",
    ]


def test_a_file_that_cannot_be_read_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, none = (
        _write(tmp_path / "bad.yaml", document({"rollout": {"strategy": "Both"}})),
        str(tmp_path / "none"),
    )
    good = _write(tmp_path / "good.yaml", document({}))
    words = ["plan", "-f", none, "-f", bad, "-f", good]
    assert main(words) == 2
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"{none}: No such file or directory"
    assert second == f"{bad}: invalid InferenceService"
    assert main([*words, "-o", "json"]) == 2
    found = json.loads(capsys.readouterr().out)
    refusals = [item["refusal"] for item in found]
    assert [refusal and refusal["reason"] for refusal in refusals] == [
        "Unreadable", "InvalidSpec", None,
    ]  # fmt: skip
    assert refusals[0]["findings"] == [{"field": "", "message": "No such file or directory"}]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "while parsing a flow node (line 1, column 5), expected the node content, but "
         "found '<stream end>' (line 1, column 5)"),
        ("a: b: c", "mapping values are not allowed here (line 1, column 5)"),
    ],
)  # fmt: skip
def test_text_that_is_no_yaml_is_shown_by_its_place(
    text: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["plan", "-f", "-"]) == 2
    assert capsys.readouterr().err == f"(stdin): not YAML: {line}\n"


@pytest.mark.parametrize("command", ["plan", "render"])
def test_help_says_the_exit_statuses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "Exit status" in capsys.readouterr().out
