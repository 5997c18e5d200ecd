"""Flags of another engine → the spec of an InferenceService, each with a line of explanation.

Pure: arguments in, a frozen value out. A flag in no table is left out with a line that says so, or
refused (`strict`). A value that is not understood is always refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from sluice_contract.config.sizing import GENERAL
from sluice_contract.config.supported import unsupported

from sluice_operator.api.engine import CacheSpec, EngineSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.model_uri import FETCHED, SERVED_SCHEMES, scheme_of
from sluice_operator.cli.translate import sglang, vllm
from sluice_operator.cli.translate.rows import Convert, Flag
from sluice_operator.validation.errors import DRAFT, refused_draft

ENGINES: Final[Mapping[str, Sequence[Flag]]] = {"vllm": vllm.FLAGS, "sglang": sglang.FLAGS}
LARGEST_DEFAULT_PREFILL: Final = 16_384
"""maxPrefillTokens when it is left out; a larger chunk needs a larger one."""
_STARTS: Final = {
    engine: re.compile(rf"(?:.*/bin/)?(?:python[\d.]*|{engine})|-m|serve|{modules}")
    for engine, modules in {
        "vllm": r"vllm\.entrypoints\.openai\.api_server",
        "sglang": r"(?:sglang\.)?launch_server",
    }.items()
}
"""Words that stand before an engine's flags where it is started by hand."""


class UntranslatableError(ValueError):
    """Flags that have no meaning here; `str()` has one line for each."""


@dataclass(frozen=True)
class Translation:
    """`spec`: what to put into an InferenceService. `lines`: one for each flag, in their order.
    `notes`: what is left out, changed, or not there yet in this version."""

    spec: dict[str, Any]
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def translate(engine: str, arguments: Sequence[str], *, strict: bool = False) -> Translation:
    """The spec that the flags of `engine` (one of ENGINES) ask for.

    Raises:
        UntranslatableError: a value is not understood, or a flag is unknown and `strict` is set.
    """
    flags = {name: flag for flag in ENGINES[engine] for name in flag.names}
    spec: dict[str, Any] = {}
    lines: list[str] = []
    left_out: list[str] = []
    errors: list[str] = []
    for name, text in _flags(_without_command(engine, arguments), flags):
        try:
            if name in flags:
                lines.append(_carry_out(name, text, flags[name], spec))
            elif strict:
                errors.append(f"--{name}: is not known here{_did_you_mean(name, flags)}")
            else:
                left_out.append(_left_out(name, text, flags))
                lines.append(left_out[-1])
        except ValueError as error:
            errors.append(f"--{name}: {error}")
    if errors := errors or _spec_errors(spec):
        raise UntranslatableError("\n".join(errors))
    lines += _consequences(spec)
    rounded = list(_whole_pages(spec))
    return Translation(spec, (*lines, *rounded), (*left_out, *rounded, *_notes(spec)))


def _without_command(engine: str, arguments: Sequence[str]) -> list[str]:
    """The flags alone, of a line that starts the engine."""
    remaining = list(arguments)
    while remaining and _STARTS[engine].fullmatch(remaining[0]):
        remaining.pop(0)
    return remaining


def _flags(arguments: Sequence[str], flags: Mapping[str, Flag]) -> Iterator[tuple[str, str | None]]:
    """Name and value of each flag; a word by itself is the model. What follows an unknown flag and
    is no flag is taken for its value."""
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("-"):
            yield "model", word
            continue
        name, equals, text = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        flag = flags.get(name)
        takes = (
            flag.convert is not None
            if flag
            else bool(remaining) and not remaining[0].startswith("-")
        )
        if equals:
            yield name, text
        elif takes and remaining and (flag is None or not remaining[0].startswith("--")):
            yield name, remaining.pop(0)
        else:
            yield name, None


def _left_out(name: str, text: str | None, flags: Iterable[str]) -> str:
    return f"{_shown(name, text)}: left out, not known here{_did_you_mean(name, flags)}"


def _did_you_mean(name: str, flags: Iterable[str]) -> str:
    near = get_close_matches(name, flags, n=1, cutoff=0.7)
    return f"; did you mean --{near[0]}?" if near else ""


def _shown(name: str, text: str | None) -> str:
    return f"--{name}" if text is None else f"--{name} {text}"


def _carry_out(name: str, text: str | None, flag: Flag, spec: dict[str, Any]) -> str:
    """Sets what the flag asks for, and says so."""
    if flag.convert is None and text is not None:
        raise ValueError(f"{text!r} is not allowed; allowed: the flag alone")
    if flag.convert is not None and text is None:
        raise ValueError("needs a value")
    if not flag.path:
        if flag.convert is not None and text is not None:
            _converted(flag.convert, text)
        return f"{_shown(name, None if flag.is_secret else text)}: {flag.says}"
    value = flag.value
    if flag.convert is not None and text is not None:
        value = _converted(flag.convert, text)
    for path, setting in ((flag.path, value), *flag.also.items()):
        _put(spec, path, setting)
    return f"{_shown(name, text)} is {flag.path}: {_yaml(value)} ({flag.says})"


def _converted(convert: Convert, text: str) -> Any:
    try:
        return convert(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not allowed; allowed: {error}") from None


def _consequences(spec: dict[str, Any]) -> Iterator[str]:
    """Settings that others need beside them."""
    engine = spec.get("engine", {})
    chunk = engine.get("chunkSize", 0)
    if chunk > engine.get("maxPrefillTokens", LARGEST_DEFAULT_PREFILL):
        _put(spec, "engine.maxPrefillTokens", chunk)
        yield f"and so engine.maxPrefillTokens: {chunk} (a step may hold one chunk of prompts)"
    if (gpus := engine.get("tensorParallelSize", 1)) > 1:
        for role in _roles(spec):
            _put(spec, f"pools.{role}.accelerator.count", gpus)
            yield f"and so pools.{role}.accelerator.count: {gpus} (GPUs of one engine)"


def _roles(spec: Mapping[str, Any]) -> tuple[str, ...]:
    return ("prefill", "decode") if spec.get("mode") == "Disaggregated" else ("mixed",)


def _whole_pages(spec: dict[str, Any]) -> Iterator[str]:
    """Rounds the pool down to whole pages."""
    tokens, page = spec.get("engine", {}).get("kvPoolTokens", 0), _page_size(spec)
    if tokens % page:
        _put(spec, "engine.kvPoolTokens", whole := tokens - tokens % page)
        yield f"engine.kvPoolTokens: {tokens} is rounded down to {whole}, whole pages of {page}"


def _page_size(spec: Mapping[str, Any]) -> int:
    return int(spec.get("engine", {}).get("pageSize") or GENERAL["page_size"])


def _spec_errors(spec: Mapping[str, Any]) -> list[str]:
    """Values that the API would refuse."""
    engine = spec.get("engine", {})
    try:
        parse(EngineSpec, engine, "engine")
    except InvalidSpecError as error:
        return [str(finding) for finding in error.findings]
    tokens, page = engine.get("kvPoolTokens"), _page_size(spec)
    if tokens is not None and tokens < page:
        return [f"engine.kvPoolTokens: {tokens} is not allowed; allowed: at least a page ({page})"]
    return []


def _notes(spec: Mapping[str, Any]) -> Iterator[str]:
    uri = spec.get("model", {}).get("uri")
    if uri is None:
        yield "model.uri: no flag names it; an InferenceService needs it"
    elif (scheme := scheme_of(uri)) not in SERVED_SCHEMES:
        served = ", ".join(f"{name}://" for name in SERVED_SCHEMES)
        yield f"model.uri: {scheme}:// is not implemented yet; allowed: {served}"
    elif scheme in FETCHED:
        yield f"model.uri: add model.cache, to which {scheme}:// is downloaded once"
    if spec.get("mode") != "Disaggregated" and "kvTransfer" in spec.get("engine", {}):
        yield "engine.kvTransfer: only in mode Disaggregated"
    on_cpus = "pools" not in spec
    if on_cpus:
        places = " and ".join(f"pools.{role}.accelerator: {{}}" for role in _roles(spec))
        yield f"engines are on CPUs as it stands; {places} gives each a GPU"
    engine = EngineSpec.model_validate(spec.get("engine", {}))
    for error in unsupported(engine, on_cpus=on_cpus):
        yield f"engine.{error}"
    if refused := refused_draft(engine, CacheSpec(size="1Gi")):
        yield f"engine.{DRAFT}: {refused}"
    elif refused_draft(engine, None):
        yield f"engine.{DRAFT}: add model.cache, to which hf:// is downloaded once"


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        spec = spec.setdefault(section, {})
    spec[last] = value


def _yaml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)
