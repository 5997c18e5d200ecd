"""The end of the process: what it may take fits into the time that the kubelet leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sluice_operator.autoscale.journals import FLUSH_SECONDS
from sluice_operator.process import listeners, watches
from sluice_operator.process.run import LEASE_END_SECONDS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("install", ["operator/deployment.yaml", "chart/templates/operator.yaml"])
def test_the_steps_of_the_end_fit_into_the_grace_period(install: str) -> None:
    manifest = ROOT / "manifests" / install
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)\n", manifest.read_text())
    both_ports = 2 * listeners.END_SECONDS
    assert watches.END_SECONDS + FLUSH_SECONDS + LEASE_END_SECONDS + both_ports < int(grace)
