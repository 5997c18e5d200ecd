"""`sluice translate --from vllm|sglang -- FLAGS`: another engine's flags as a service."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sluice_operator.api.service import MAX_NAME
from sluice_operator.observed import INFERENCE_SERVICE
from sluice_operator.translate.translate import ENGINES, UntranslatableError, translate
from sluice_operator.yaml_text import to_yaml

REFUSED = 1


def run(words: Sequence[str]) -> int:
    """Prints an InferenceService, explained by comments. 1: a flag has no meaning here."""
    parser = argparse.ArgumentParser(
        prog="sluice translate",
        description="Another engine's flags as an InferenceService that `sluice plan -f -` takes.",
        epilog="example: sluice translate --from vllm -- --max-num-seqs 128",
    )
    parser.add_argument("--from", dest="engine", choices=ENGINES, required=True)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="after --, as the engine has them")
    options = parser.parse_args(words)
    given = options.flags[1:] if options.flags[:1] == ["--"] else options.flags
    try:
        found = translate(options.engine, given)
    except UntranslatableError as error:
        for line in str(error).splitlines():
            print(f"{options.engine} {line}", file=sys.stderr)
        return REFUSED
    for line in found.lines:
        print(f"# {line}")
    kind = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind}
    metadata = {"name": _name(found.spec.get("model", {}))}
    print(to_yaml({**kind, "metadata": metadata, "spec": found.spec}), end="")
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _name(model: Mapping[str, Any]) -> str:
    """A name for the service, after its model."""
    words = (model.get("name") or model.get("uri") or "").rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).lstrip("-0123456789")
    return name[:MAX_NAME].rstrip("-") or "model"
