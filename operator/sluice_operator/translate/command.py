"""`sluice translate --from vllm|sglang -- FLAGS`: the spec that another engine's flags ask for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sluice_operator.translate.translate import ENGINES, UntranslatableError, translate
from sluice_operator.yaml_text import to_yaml

REFUSED = 1


def run(words: Sequence[str]) -> int:
    """Prints the spec as YAML with the explanations as comments. 1: a flag has no meaning here."""
    parser = argparse.ArgumentParser(
        prog="sluice translate",
        description="Another engine's flags as the spec of an InferenceService, explained.",
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
    print(to_yaml({"spec": found.spec}), end="")
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
