"""`sluice translate --from vllm|sglang -- FLAGS`: another engine's flags as a service.

The service is one that `sluice plan` takes: what plan would refuse is left out with a note, where
an engine can do without it, or named.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sluice_operator.api.findings import Finding, InvalidSpecError
from sluice_operator.api.model_uri import BUCKETS, FETCHED, scheme_of
from sluice_operator.api.service import MAX_NAME
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.preview import preview
from sluice_operator.cli.translate.translate import (
    ENGINES,
    Translation,
    UntranslatableError,
    translate,
)
from sluice_operator.cli.yaml_text import to_yaml
from sluice_operator.kube.kinds import INFERENCE_SERVICE

REFUSED: Final = 1
OPTIONAL: Final = (
    "engine.speculation",
    "engine.hostCache",
    "engine.kvTransfer",
    "engine.cudaGraphMaxBatch",
    "engine.attentionBackend",
    "engine.schedulingPolicy",
    "model.revision",
)
"""Settings without which answers are the same, in the order in which they are left out."""
CACHE_SIZE: Final = "200Gi"
CACHE: Final = "a guess: it holds model, drafts and adapters that are downloaded"
_FIELD: Final = re.compile(r"spec\.(?:prefill\.)?((?:engine|model)\.\w+)")


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


def document(translation: Translation) -> dict[str, Any]:
    """The InferenceService, named after its model."""
    model = translation.spec.get("model", {})
    model_name = (model.get("name") or model.get("uri") or "").rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower()).lstrip("-0123456789")
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name[:MAX_NAME].rstrip("-") or "model"},
        "spec": translation.spec,
    }


def make_acceptable(translation: Translation) -> tuple[Finding, ...]:
    """Leaves out settings that plan would refuse and engines can do without; returns what plan
    still refuses."""
    if "uri" not in translation.spec.get("model", {}):
        return (Finding("model.uri", "no flag names the model"),)
    spec = translation.spec
    has_adapters = "adapters" in spec["model"]
    if cached := _downloads(spec):
        translation.put("model.cache.size", CACHE_SIZE, CACHE)
        if not has_adapters and scheme_of(spec["model"]["uri"]) not in FETCHED:
            translation.put("model.adapters", [], "without a list this model may have no cache")
    if "prefill" not in spec and "kvTransfer" in spec.get("engine", {}):
        translation.drop("engine.kvTransfer", "only where prompts have a pool of their own")
    while findings := _findings(document(translation)):
        messages = {
            match[1]: finding.message
            for finding in findings
            if (match := _FIELD.match(finding.field))
        }
        path = next((path for path in OPTIONAL if path in messages), None)
        if path is None:
            break
        translation.drop(path, messages[path])
    if _downloads(spec):
        translation.notes.append(f"model.cache.size: {CACHE_SIZE} is {CACHE}")
    elif cached:
        del spec["model"]["cache"]
        if not has_adapters:
            spec["model"].pop("adapters", None)
    return findings


def _findings(service: dict[str, Any]) -> tuple[Finding, ...]:
    """Findings of `sluice plan` against the service."""
    try:
        refusal = preview(service, DEFAULT_IMAGES).plan.refusal
    except InvalidSpecError as error:
        return tuple(error.findings)
    if refusal is None:
        return ()
    return tuple(part.finding for part in refusal.parts or (refusal,))


def _downloads(spec: Mapping[str, Any]) -> bool:
    """Whether something is downloaded that needs a volume: a bucket's model, or a hub's draft or
    adapter."""
    model, speculation = spec["model"], spec.get("engine", {}).get("speculation", {})
    uris = [adapter["uri"] for adapter in model.get("adapters", ())]
    uris.append(speculation.get("draft", {}).get("uri", ""))
    return scheme_of(model["uri"]) in BUCKETS or any(uri.startswith("hf://") for uri in uris)
