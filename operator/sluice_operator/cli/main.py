"""`sluice plan|render -f service.yaml`: what the operator would do, without a cluster.

Reads files and prints; every decision is the operator's own code. `sluice simulate` and `sluice
autoscale replay` start the simulator, and `sluice serve` an engine, as separate programs, because
the operator does not import the runtime. `sluice translate` is `translate.command`; `sluice
explain` is `explain.command`. Four commands need a cluster: `sluice autoscale history` (`history`),
`sluice rollout` (`rollout.command`), `sluice top` (`top.command`) and `sluice chat`
(`chat.command`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.version import VERSION

from sluice_operator.api.findings import InvalidSpecError
from sluice_operator.cli import document_errors
from sluice_operator.cli.document_errors import DocumentErrors
from sluice_operator.cli.documents import Document, UnusableFileError, read_documents
from sluice_operator.cli.explain import command as explain
from sluice_operator.cli.image_options import add_images, images_of
from sluice_operator.cli.preview import Preview, as_json, as_text, preview
from sluice_operator.cli.translate import command as translate
from sluice_operator.cli.yaml_text import to_yaml_stream
from sluice_operator.service.observe import Images

REFUSED: Final = 1
UNUSABLE: Final = 2
SIMULATE: Final = "simulate"
TRANSLATE: Final = "translate"
EXPLAIN: Final = "explain"
AUTOSCALE: Final = "autoscale"
REPLAY: Final = "replay"
HISTORY: Final = "history"
ROLLOUT: Final = "rollout"
TOP: Final = "top"
CHAT: Final = "chat"
SERVE: Final = "serve"
SIMULATOR: Final = "sluice_simulator"
SCALING_SIMULATOR: Final = "sluice_simulator.autoscale"
ENGINE: Final = "sluice_runtime.process.serve"
PROGRAMS: Final = {
    (SIMULATE,): SIMULATOR,
    (AUTOSCALE, REPLAY): SCALING_SIMULATOR,
    (SERVE,): ENGINE,
}
"""Command → module that runs it as a program of its own."""
STATUSES: Final = (
    "Exit status: 0; 1 where a service would be refused, or (plan) its model does not fit into its "
    "engines; 2 where a file or an option is unusable. "
    "Every file and every document is checked, and nothing is shown of the others where one is "
    "refused. With -o json, errors are JSON too: each has refusal.findings, a list of field and "
    "message (plan writes it to stdout, render to stderr)."
)
EXAMPLES: Final = """\
examples:
  sluice plan -f service.yaml                 what the operator would make of it, and why
  sluice render -f service.yaml               the manifests
  sluice rules -f service.yaml                Prometheus' rules for its slo
  sluice explain -f service.yaml --accelerator NVIDIA-H100-80GB-HBM3
                                              sizes with reasons, and which arrangement pays
  sluice serve Qwen/Qwen3-0.6B                one engine on this machine, without a cluster
  sluice simulate --trace trace.jsonl         a trace on the real scheduler
  sluice autoscale replay --trace trace.csv   a trace on fleets that scale
  sluice autoscale history chat -n shop       what the autoscaler decided
  sluice translate --from vllm -- --model Qwen/Qwen3-8B --max-num-seqs 256
                                              another engine's flags as a service
  sluice rollout status chat -n shop          a change in a cluster; undo takes it back
  sluice rollout promote chat -n shop         the next share of a canary; abort ends it
  sluice top -n shop                          services, pools and engines, live
  sluice chat chat -n shop "What is a pod?"   an answer of a service; without a prompt, a talk
"""

Result = Preview | DocumentErrors
"""The preview of one document, or its errors."""


def main(arguments: list[str] | None = None) -> int:
    """The command. 0: done; 1: a service would be refused; 2: a file is unusable."""
    if arguments is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, and not a traceback
    command_line = sys.argv[1:] if arguments is None else arguments
    for words, module in PROGRAMS.items():
        if tuple(command_line[: len(words)]) == words:
            return _start(module, words, command_line[len(words) :])
    if command_line[:2] == [AUTOSCALE, HISTORY]:
        from sluice_operator.cli import history  # with its client, which takes half a second

        return history.run(command_line[2:])
    if command_line[:1] == [ROLLOUT]:
        from sluice_operator.cli.rollout import command as rollout  # imports the client, too

        return rollout.run(command_line[1:])
    if command_line[:1] == [TOP]:
        from sluice_operator.cli.top import command as top  # imports the client and rich

        return top.run(command_line[1:])
    if command_line[:1] == [CHAT]:
        from sluice_operator.cli.chat import command as chat  # imports the client

        return chat.run(command_line[1:])
    if command_line[:1] == [TRANSLATE]:
        return translate.run(command_line[1:])
    if command_line[:1] == [EXPLAIN]:
        return explain.run(command_line[1:])
    return _read_files(command_line)


def _read_files(command_line: list[str]) -> int:
    """Runs a command that needs the files of services alone."""
    if command_line == ["version"]:
        command_line = ["--version"]
    if not command_line:
        _parser().print_help()
        return 0
    options = _parser().parse_args(command_line)
    try:
        images = images_of(options, os.environ)
    except ConfigError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return UNUSABLE
    checks_fit = options.command is _plan
    results = [
        item for file in options.file for item in _results(file, images, checks_fit=checks_fit)
    ]
    command: Callable[[Sequence[Result], argparse.Namespace], None] = options.command
    command(results, options)
    return _status(results)


def _results(file: str, images: Images, *, checks_fit: bool) -> list[Result]:
    try:
        documents = read_documents(file)
        return [_result(document, images, checks_fit=checks_fit) for document in documents]
    except UnusableFileError as error:
        return [document_errors.unreadable(file, str(error))]


def _result(document: Document, images: Images, *, checks_fit: bool) -> Result:
    """The preview, or why there is none. `checks_fit`: whether a model that does not fit is an
    error."""
    try:
        previewed = preview(document.value, images)
    except InvalidSpecError as error:
        return document_errors.invalid(document, error)
    if previewed.plan.refusal is not None:
        return document_errors.refused(document, previewed.plan.refusal)
    if checks_fit and (misfits := previewed.misfits):
        return document_errors.misfitting(document, misfits)
    return previewed


def _plan(results: Sequence[Result], options: argparse.Namespace) -> None:
    if options.output == "json":
        summaries = [
            document_errors.as_json(i) if isinstance(i, DocumentErrors) else as_json(i)
            for i in results
        ]
        print(json.dumps(summaries, indent=2))
    elif wrong := _refused(results):
        _complain(wrong)
    else:
        shown = [item for item in results if isinstance(item, Preview)]
        texts = [as_text(item, lists_objects=options.verbose) for item in shown]
        print("\n".join(texts), end="")


def _render(results: Sequence[Result], options: argparse.Namespace) -> None:
    if wrong := _refused(results):
        if options.output == "json":
            print(
                json.dumps([document_errors.as_json(item) for item in wrong], indent=2),
                file=sys.stderr,
            )
        else:
            _complain(wrong)
        return
    manifests = [m for item in results if isinstance(item, Preview) for m in item.manifests]
    if options.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    else:
        print(to_yaml_stream(manifests), end="")


def _rules(results: Sequence[Result], options: argparse.Namespace) -> None:
    if wrong := _refused(results):
        _complain(wrong)
        return
    previews = [item for item in results if isinstance(item, Preview)]
    groups = {"groups": [g for item in previews for g in item.slo(options.runbook_url_base)]}
    is_json = options.output == "json"
    print(json.dumps(groups, indent=2) if is_json else to_yaml_stream([groups]), end="")


def _refused(results: Iterable[Result]) -> list[DocumentErrors]:
    return [item for item in results if isinstance(item, DocumentErrors)]


def _complain(wrong: Iterable[DocumentErrors]) -> None:
    for item in wrong:
        print(document_errors.as_text(item), end="", file=sys.stderr)


def _status(results: Iterable[Result]) -> int:
    reasons = {item.reason for item in _refused(results)}
    if document_errors.UNREADABLE in reasons:
        return UNUSABLE
    return REFUSED if reasons else 0


def _start(module: str, command: Sequence[str], arguments: Sequence[str]) -> int:
    """Replaces this process by a program of the simulator or the runtime, which reports missing
    requirements itself. Returns only if that fails."""
    if find_spec(module.partition(".")[0]) is None:
        name, is_engine = " ".join(["sluice", *command]), module == ENGINE
        extras = "engine,fetch" if is_engine else "simulate"
        setup = "scripts/setup --serve" if is_engine else "scripts/setup"
        had = f"in a checkout, {setup} or: pip install '.[operator,{extras}]'"
        print(f"{name}: not installed; it comes with the extra {extras}: {had}", file=sys.stderr)
        return UNUSABLE
    return os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sluice {VERSION}")
    commands = parser.add_subparsers(required=True)
    for name, command, outputs, text in (
        ("plan", _plan, ("text", "json"), "what the operator would make of a service, and why"),
        ("render", _render, ("yaml", "json"), "the manifests that would be applied"),
        (
            "rules",
            _rules,
            ("yaml", "json"),
            "Prometheus' rules for the promises in a service's slo",
        ),
    ):
        sub = commands.add_parser(name, help=text, description=text, epilog=STATUSES)
        sub.set_defaults(command=command)
        text = "InferenceServices; - is stdin. Given several times: all of them, in that order"
        sub.add_argument("-f", "--file", required=True, action="append", help=text)
        sub.add_argument("-o", "--output", choices=outputs, default=outputs[0])
        add_images(sub)
        if command is _plan:
            text = "names the objects that would be made"
            sub.add_argument("-v", "--verbose", action="store_true", help=text)
        if command is _rules:
            text = "where the files of docs/runbooks are served: what `runbook_url` begins with"
            sub.add_argument("--runbook-url-base", default="", help=text)
    text = "one engine on this machine, without a cluster; see its --help"
    commands.add_parser(SERVE, help=text, add_help=False)
    text = "simulates a trace on an engine; see its --help"
    commands.add_parser(SIMULATE, help=text, add_help=False)
    text = "past decisions of the autoscaler (history); a trace on simulated fleets (replay)"
    scaling = commands.add_parser(AUTOSCALE, help=text, description=text)
    scalings = scaling.add_subparsers(required=True)
    text = "decisions of the operator's autoscaler; see its --help"
    scalings.add_parser(HISTORY, help=text, add_help=False)
    text = "a trace on fleets that different policies scale; see its --help"
    scalings.add_parser(REPLAY, help=text, add_help=False)
    text = "the service that another engine's flags ask for, explained; see its --help"
    commands.add_parser(TRANSLATE, help=text, add_help=False)
    text = "what engines are sized for and why, what pays, hints; see its --help"
    commands.add_parser(EXPLAIN, help=text, add_help=False)
    text = "roll-outs in a cluster: status, history, undo, restart, promote, abort; see its --help"
    commands.add_parser(ROLLOUT, help=text, add_help=False)
    text = "services, pools and engines of a cluster, live; see its --help"
    commands.add_parser(TOP, help=text, add_help=False)
    text = "talks to a service of a cluster; see its --help"
    commands.add_parser(CHAT, help=text, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
