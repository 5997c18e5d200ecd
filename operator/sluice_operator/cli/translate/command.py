"""`sluice translate --from vllm|sglang -- FLAGS`: another engine's flags as a service."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sluice_operator.cli.translate.accepted import document, make_acceptable
from sluice_operator.cli.translate.translate import ENGINES, UntranslatableError, translate
from sluice_operator.cli.yaml_text import to_yaml

REFUSED: Final = 1


def run(arguments: Sequence[str]) -> int:
    """Prints an InferenceService, explained by comments. 1: a flag cannot be translated, or `sluice
    plan` would refuse the service."""
    parser = argparse.ArgumentParser(
        prog="sluice translate",
        description="Another engine's flags as an InferenceService that `sluice plan -f -` takes.",
        epilog="example: sluice translate --from vllm -- vllm serve /models/a --max-num-seqs 128",
    )
    parser.add_argument("--from", dest="engine", choices=ENGINES, required=True)
    parser.add_argument("--strict", action="store_true", help="refuse flags that would be left out")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="after --, as the engine has them")
    options = parser.parse_args(arguments)
    flags = options.flags[1:] if options.flags[:1] == ["--"] else options.flags
    try:
        translation = translate(options.engine, flags, strict=options.strict)
    except UntranslatableError as error:
        for line in str(error).splitlines():
            print(f"{options.engine} {line}", file=sys.stderr)
        return REFUSED
    if findings := make_acceptable(translation):
        for finding in findings:
            print(f"{options.engine}: {finding}", file=sys.stderr)
        return REFUSED
    for line in translation.lines:
        print(f"# {line}")
    for line in _commented(to_yaml(document(translation)), translation.comments):
        print(line)
    for note in translation.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _commented(text: str, comments: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Lines of YAML, each setting with its comments behind it; `comments`: by path below `spec`."""
    path: list[str] = []
    for line in text.splitlines():
        if key := re.match(r"( *)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if path[0] == "spec" and (explained := comments.get(".".join(path[1:]))):
                line = f"{line}  # {'; '.join(explained)}"
        yield line
