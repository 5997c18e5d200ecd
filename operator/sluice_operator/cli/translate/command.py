"""`sluice translate --from vllm|sglang -- FLAGS`: another engine's flags as a service."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sluice_operator.api.service import MAX_NAME
from sluice_operator.cli.translate.translate import ENGINES, UntranslatableError, translate
from sluice_operator.cli.yaml_text import to_yaml
from sluice_operator.kube.kinds import INFERENCE_SERVICE

REFUSED = 1


def run(arguments: Sequence[str]) -> int:
    """Prints an InferenceService, explained by comments. 1: a flag cannot be translated."""
    parser = argparse.ArgumentParser(
        prog="sluice translate",
        description="Another engine's flags as an InferenceService that `sluice plan -f -` takes.",
        epilog="example: sluice translate --from vllm -- --max-num-seqs 128",
    )
    parser.add_argument("--from", dest="engine", choices=ENGINES, required=True)
    parser.add_argument(
        "--strict", action="store_true", help="refuse unknown flags instead of leaving them out"
    )
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="after --, as the engine has them")
    options = parser.parse_args(arguments)
    flags = options.flags[1:] if options.flags[:1] == ["--"] else options.flags
    try:
        translation = translate(options.engine, flags, strict=options.strict)
    except UntranslatableError as error:
        for line in str(error).splitlines():
            print(f"{options.engine} {line}", file=sys.stderr)
        return REFUSED
    for line in translation.lines:
        print(f"# {line}")
    kind = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind}
    metadata = {"name": _name(translation.spec.get("model", {}))}
    print(to_yaml({**kind, "metadata": metadata, "spec": translation.spec}), end="")
    for note in translation.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _name(model: Mapping[str, Any]) -> str:
    """A name for the service, after its model."""
    model_name = (model.get("name") or model.get("uri") or "").rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower()).lstrip("-0123456789")
    return name[:MAX_NAME].rstrip("-") or "model"
