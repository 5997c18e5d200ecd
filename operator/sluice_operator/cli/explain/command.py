"""`sluice explain -f service.yaml [--nodes nodes.yaml | --accelerator NAME]`: the reasoning.

Parses, delegates, prints. Refuses the services that `sluice plan` refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.wire.explain import Answer, Question, Requests

from sluice_operator.api.findings import InvalidSpecError
from sluice_operator.cli import document_errors
from sluice_operator.cli.document_errors import DocumentErrors
from sluice_operator.cli.documents import Document, UnusableFileError, read_documents
from sluice_operator.cli.explain.advice import Facts, hints, verdicts
from sluice_operator.cli.explain.nodes import on_accelerator, read_nodes
from sluice_operator.cli.explain.question import Load, ask, promise_of, question
from sluice_operator.cli.explain.shown import (
    ExplainedPool,
    Explanation,
    explained_json,
    explained_text,
)
from sluice_operator.cli.image_options import add_images, images_of
from sluice_operator.cli.preview import Preview, preview
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images

REFUSED: Final = 1
UNUSABLE: Final = 2
PROMPT_TOKENS: Final = 1155
ANSWER_TOKENS: Final = 211
"""Mean tokens of a prompt and of an answer in Azure's conversations of 2023 (AzurePublicDataset,
AzureLLMInferenceTrace_conv)."""
Ask = Callable[[Question], Answer]


def run(arguments: Sequence[str], simulate: Ask = ask) -> int:
    """The command. 0: done; 1: a service would be refused; 2: a file or an option is unusable."""
    options = _parser().parse_args(arguments)
    try:
        images = images_of(options, os.environ)
        nodes = read_nodes(options.nodes) if options.nodes else None
        load = Load(
            Requests(prompt_tokens=options.prompt_tokens, answer_tokens=options.answer_tokens),
            _text_of(options.model_config),
        )
        documents = read_documents(options.file)
    except ConfigError as error:
        print(f"sluice explain: {error}", file=sys.stderr)
        return UNUSABLE
    except UnusableFileError as error:
        unreadable = document_errors.unreadable(options.file, str(error))
        _print(unreadable, options.output)
        return UNUSABLE
    status = 0
    for document in documents:
        explained = _explained(document, images, nodes, options.accelerator, load, simulate)
        status = max(status, _print(explained, options.output))
    return status


def _explained(
    document: Document,
    images: Images,
    nodes: tuple[Manifest, ...] | None,
    accelerator: str | None,
    load: Load,
    simulate: Ask,
) -> Explanation | DocumentErrors:
    value, nodes_known = document.value, nodes is not None
    if accelerator is not None:
        value, nodes = on_accelerator(value, accelerator)
    try:
        previewed = preview(value, images, nodes)
    except InvalidSpecError as error:
        return document_errors.invalid(document, error)
    if previewed.plan.refusal is not None:
        return document_errors.refused(document, previewed.plan.refusal)
    return _explanation(previewed, load, simulate, nodes_known)


def _explanation(previewed: Preview, load: Load, simulate: Ask, nodes_known: bool) -> Explanation:
    spec, answers = previewed.plan.spec, dict[Question, Answer]()
    assert spec is not None
    pools = []
    for pool in previewed.plan.pools:
        about = question(spec, pool, load)
        if about not in answers:
            answers[about] = simulate(about)
        judged = verdicts(answers[about])
        facts = Facts(spec, pool, {verdict.subject: verdict for verdict in judged})
        advice = tuple(hints(facts, nodes_known=nodes_known))
        pools.append(ExplainedPool(pool, answers[about], judged, advice))
    return Explanation(previewed, load.requests, promise_of(spec), tuple(pools))


def _print(explained: Explanation | DocumentErrors, output: str) -> int:
    if isinstance(explained, DocumentErrors):
        if output == "json":
            print(json.dumps(document_errors.as_json(explained)))
        else:
            print(document_errors.as_text(explained), end="", file=sys.stderr)
        return REFUSED
    print(json.dumps(explained_json(explained)) if output == "json" else explained_text(explained))
    return 0


def _text_of(file: str | None) -> str | None:
    try:
        return Path(file).read_text() if file else None
    except (OSError, ValueError) as error:
        raise ConfigError("--model-config", file, f"a readable config.json ({error})") from None


def _tokens(word: str) -> int:
    value = int(word)
    if not 1 <= value <= 1_048_576:
        raise ValueError
    return value


_tokens.__name__ = "number of tokens from 1 to 1048576"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice explain",
        description="What a service's engines are sized for and why, whether chunking, mixing or "
        "disaggregation pays and from which load on (simulated), and hints.",
        epilog="Exit status: 0; 1 where a service would be refused; 2 where a file or an option "
        "is unusable. -o json prints one object a line, one for each service.",
    )
    parser.add_argument("-f", "--file", required=True, help="InferenceServices; - is stdin")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--nodes", help="what kubectl get nodes -o yaml says")
    where.add_argument("--accelerator", help="as if every pool ran on this product")
    parser.add_argument(
        "--prompt-tokens", type=_tokens, default=PROMPT_TOKENS, help="on average (%(default)s)"
    )
    parser.add_argument(
        "--answer-tokens", type=_tokens, default=ANSWER_TOKENS, help="on average (%(default)s)"
    )
    parser.add_argument("--model-config", help="config.json of a model that is not well known")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    add_images(parser)
    return parser
