"""`sluice plan|render -f service.yaml`: what the operator would do, without a cluster.

Reads files and prints; every decision is the operator's own. `sluice simulate` is the simulator's
command: a process of its own, since nothing of the operator knows the runtime. `sluice translate`
is `translate.command`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from sluice_operator.api.findings import InvalidSpecError
from sluice_operator.observed import INFERENCE_SERVICE, Images
from sluice_operator.preview import Preview, as_json, as_text, preview
from sluice_operator.translate import command as translate
from sluice_operator.yaml_text import DuplicateKeyError, read_yaml_stream, to_yaml_stream

REFUSED: Final = 1
UNUSABLE: Final = 2
SIMULATE: Final = "simulate"
TRANSLATE: Final = "translate"
SIMULATOR: Final = "sluice_simulator"
DEFAULT_IMAGES: Final = Images(engine="sluice/engine:0.1.0", router="sluice/router:0.1.0")


class UnusableFileError(ValueError):
    """A file that cannot be read, or that holds no InferenceService."""


class InvalidFileError(ValueError):
    """A file with an InferenceService that the API server would refuse."""


def main(arguments: list[str] | None = None) -> int:
    """The command. 0: done; 1: the service would be refused; 2: the file is unusable."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == [SIMULATE]:
        return _simulate(words[1:])
    if words[:1] == [TRANSLATE]:
        return translate.run(words[1:])
    options = _parser(os.environ).parse_args(words)
    images = Images(engine=options.engine_image, router=options.router_image)
    try:
        shown = [item for file in options.file for item in _previews(file, images)]
    except (InvalidFileError, UnusableFileError) as error:
        print(error, file=sys.stderr)
        return REFUSED if isinstance(error, InvalidFileError) else UNUSABLE
    command: Callable[[list[Preview], str], int] = options.command
    return command(shown, options.output)


def _previews(file: str, images: Images) -> list[Preview]:
    try:
        return [preview(document, images) for document in read_services(file)]
    except InvalidSpecError as error:
        raise InvalidFileError(f"{file}: invalid InferenceService\n{error}") from None


def read_services(file: str) -> list[Any]:
    """The InferenceServices of a YAML or JSON file (`-`: standard input).

    Raises:
        UnusableFileError: there are none, or the file cannot be read.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        documents = [document for document in read_yaml_stream(text) if document is not None]
    except OSError as error:
        raise UnusableFileError(f"{file}: {error.strerror}") from None
    except DuplicateKeyError as error:
        raise UnusableFileError(f"{file}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UnusableFileError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    # A document without a kind is checked too: its author should hear what is missing.
    services = [document for document in documents if _is_service(document)]
    if not services:
        kinds = sorted({str(document.get("kind")) for document in documents}) or ["nothing"]
        raise UnusableFileError(f"{file}: holds {', '.join(kinds)}; allowed: InferenceService")
    return services


def _is_service(document: Any) -> bool:
    if not isinstance(document, Mapping):
        return True
    return bool(document.get("kind", INFERENCE_SERVICE.kind) == INFERENCE_SERVICE.kind)


def _plan(shown: list[Preview], output: str) -> int:
    if output == "json":
        print(json.dumps([as_json(item) for item in shown], indent=2))
    else:
        print("\n".join(as_text(item) for item in shown), end="")
    return _refused(shown)


def _render(shown: list[Preview], output: str) -> int:
    for item in shown:
        if item.plan.refusal is not None:
            print(as_text(item), end="", file=sys.stderr)
    if _refused(shown):
        return REFUSED
    manifests = [manifest for item in shown for manifest in item.manifests]
    if output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    else:
        print(to_yaml_stream(manifests), end="")
    return 0


def _simulate(words: Sequence[str]) -> int:
    """Hands over to the simulator, which says itself what of its needs is missing."""
    if find_spec(SIMULATOR) is None:
        missing = "sluice simulate: the simulator is not installed; it comes with the extra"
        had = "in a checkout, scripts/setup or: uv pip install '.[operator,simulate]'"
        print(f"{missing} `simulate`: {had}", file=sys.stderr)
        return UNUSABLE
    status = subprocess.run([sys.executable, "-m", SIMULATOR, *words], check=False).returncode
    return status if status >= 0 else 128 - status  # as a shell has it, of a signal


def _refused(shown: Iterable[Preview]) -> int:
    return REFUSED if any(item.plan.refusal is not None for item in shown) else 0


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice", description="Preview InferenceServices, simulate engines, translate flags."
    )
    commands = parser.add_subparsers(required=True)
    for name, command, outputs, text in (
        ("plan", _plan, ("text", "json"), "what would be made of a service, and why"),
        ("render", _render, ("yaml", "json"), "the manifests that would be applied"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        text = "InferenceServices; - is stdin. Given several times: all of them, in that order"
        sub.add_argument("-f", "--file", required=True, action="append", help=text)
        sub.add_argument("-o", "--output", choices=outputs, default=outputs[0])
        _add_images(sub, environment)
    text = "what an engine would make of a trace (extra `simulate`); see its --help"
    commands.add_parser(SIMULATE, help=text, add_help=False)
    text = "the service that another engine's flags ask for, explained; see its --help"
    commands.add_parser(TRANSLATE, help=text, add_help=False)
    return parser


def _add_images(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    for name, default in (("engine", DEFAULT_IMAGES.engine), ("router", DEFAULT_IMAGES.router)):
        variable = f"SLUICE_{name.upper()}_IMAGE"
        parser.add_argument(
            f"--{name}-image",
            default=environment.get(variable, default),
            help=f"default: ${variable}, else {default}",
        )


if __name__ == "__main__":
    sys.exit(main())
