"""`sluice autoscale history` shows what the operator's journal has, and gives it to a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_autoscaler.history import Tick
from sluice_autoscaler.journal import Journal
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineFigures
from sluice_operator.autoscale.journals import journal_manifest
from sluice_operator.cli.main import main

from tests.operator.harness.proxy import kubeconfig_of

SERVICE = {
    "apiVersion": "serving.sluice.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "shop", "uid": "1"},
}
SETTINGS = ScalingSettings({Role.MIXED: PoolLimits(1, 8)})


def journal() -> Journal:
    engine = EngineSample(
        "chat-0",
        Role.MIXED,
        "e",
        "ready",
        0.5,
        figures=EngineFigures(queued_work_seconds=9.0, queued_tokens=9000),
    )
    seen = Sample(100.0, {Role.MIXED: PoolSample(Role.MIXED, 1, 1)}, (engine,))
    blind = replace(seen, time_seconds=102.0, engines=None)
    written = Journal()
    for sample, desired, reason in ((seen, 3, "QueuedWork"), (blind, 1, "MetricsMissing")):
        pool = PoolDecision(Role.MIXED, 1, desired, reason, "in words")
        tick = Tick(sample, Decision({Role.MIXED: pool}, reason, f"mixed: {reason} in words"))
        written.add(SETTINGS, tick, 1.7e9 + sample.time_seconds)
    return written


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An API server that has one ConfigMap."""
    found = json.dumps(journal_manifest(SERVICE, journal().text())).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there = self.path == "/api/v1/namespaces/shop/configmaps/chat-scaling"
            body = found if there else b'{"kind": "Status", "message": "not found"}'
            self.send_response(200 if there else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    config = kubeconfig_of(tmp_path / "config", server.server_address[1])
    monkeypatch.setenv("KUBECONFIG", str(config))
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("cluster")
def test_each_decision_has_a_line_with_time_numbers_and_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["autoscale", "history", "chat", "-n", "shop"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2023-11-14T22:15:00Z  mixed 1 → 3  QueuedWork: mixed: QueuedWork in words",
        "2023-11-14T22:15:02Z  mixed 1  MetricsMissing: mixed: MetricsMissing in words",
    ]
    assert main(["autoscale", "history", "chat", "-n", "shop", "--last", "1", "-o", "json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["reason"] == "MetricsMissing"


@pytest.mark.usefixtures("cluster")
def test_the_journal_itself_is_what_a_replay_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autoscale", "history", "chat", "-n", "shop", "-o", "journal"]) == 0
    assert capsys.readouterr().out == journal().text()


@pytest.mark.usefixtures("cluster")
def test_a_service_without_a_journal_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autoscale", "history", "chat"]) == 1
    said = capsys.readouterr().err
    assert "no journal of chat: ConfigMap chat-scaling in namespace default is not there" in said


def test_without_a_cluster_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(tmp_path / "config", 9)))
    assert main(["autoscale", "history", "chat"]) == 2
    assert capsys.readouterr().err.startswith("sluice autoscale history: ")
