"""`sluice explain -f service.yaml [--nodes nodes.yaml | --accelerator NAME]`: the reasoning.

Parses, delegates, prints. Refuses the services that `sluice plan` refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

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
    explained_lines,
)
from sluice_operator.cli.image_options import add_images, images_of
from sluice_operator.cli.preview import Preview, preview
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images
from sluice_operator.service.rollout.planned_rollout import PlannedPool

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
        previewed = preview(value, images, nodes, load.model_config)
    except InvalidSpecError as error:
        return document_errors.invalid(document, error)
    if previewed.plan.refusal is not None:
        return document_errors.refused(document, previewed.plan.refusal)
    if misfits := previewed.misfits:
        return document_errors.misfitting(document, misfits)
    explanation = _explanation(
        previewed, load, simulate, nodes_known=nodes_known, asked=nodes is not None
    )
    return replace(explanation, measured_start=_measured_start(document.value))


def _measured_start(service: Any) -> str | None:
    """`status.scaling.start`, where the document is of a service in a cluster."""
    for key in ("status", "scaling", "start"):
        service = service.get(key) if isinstance(service, dict) else None
    return service if isinstance(service, str) else None


def _explanation(
    previewed: Preview, load: Load, simulate: Ask, *, nodes_known: bool, asked: bool
) -> Explanation:
    spec, simulated = previewed.plan.spec, cache(simulate)
    assert spec is not None

    def explain(pool: PlannedPool) -> ExplainedPool:
        answer = simulated(question(spec, pool, load))
        judged = verdicts(answer)
        by_subject = {verdict.subject: verdict for verdict in judged}
        facts = Facts(spec, pool, previewed.sizes, by_subject)
        return ExplainedPool(pool, answer, judged, tuple(hints(facts, nodes_known=nodes_known)))

    return Explanation(previewed, load.requests, promise_of(spec), explain, knows_nodes=asked)


def _print(explained: Explanation | DocumentErrors, output: str) -> int:
    if isinstance(explained, DocumentErrors):
        if output == "json":
            print(json.dumps(document_errors.as_json(explained)))
        else:
            print(document_errors.as_text(explained), end="", file=sys.stderr)
        return REFUSED
    if output == "json":
        print(json.dumps(explained_json(explained)))
        return 0
    for line in explained_lines(explained):
        print(line, flush=True)  # what is known is read while the rest is simulated
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
        epilog="Exit status: 0; 1 where a service would be refused, or its model does not fit; 2 "
        "where a file or an option is unusable. -o json prints one object a line, one for each "
        "service.",
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
