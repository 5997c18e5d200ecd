"""What becomes of the Jobs that bring a model: pods that have ended, and their messages."""

from __future__ import annotations

import json
from typing import Any, Final

from sluice_operator.kube.kinds import Manifest

COMMIT: Final = "c0ffee" * 6 + "0123"
RESOLVED: Final[Manifest] = {
    "commit": COMMIT,
    "bytes": 16_400_000_000,
    "architecture": "Qwen3ForCausalLM",
    "layers": 36,
    "kvHeads": 8,
    "headDim": 128,
    "hiddenSize": 4096,
    "tensorParallelSizes": [1, 2, 4, 8, 16, 32],
    "dtype": "bfloat16",
    "contextTokens": 40960,
}


def said(reason: str, message: str) -> str:
    """A termination message."""
    return json.dumps({"reason": reason, "message": message})


def resolved(**changes: Any) -> str:
    """The termination message of a Job that has resolved a revision."""
    return said("ModelResolved", json.dumps(RESOLVED | changes))


def ended_pod(job: Manifest, code: int, message: str, number: int = 0) -> Manifest:
    """A pod of the live `job` whose container has ended."""
    ended = {"exitCode": code, "message": message, "finishedAt": f"2026-01-02T03:04:0{number}Z"}
    container = {"name": "fetch-model", "ready": False, "state": {"terminated": ended}}
    template, name = job["spec"]["template"], job["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{number}",
            "namespace": job["metadata"]["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": name,
                    "uid": job["metadata"]["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": template["spec"],
        "status": {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [container],
        },
    }
