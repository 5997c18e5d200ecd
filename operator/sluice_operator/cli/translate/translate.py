"""Flags of another engine → the spec of an InferenceService, with a comment for each.

Pure: arguments in, a frozen value out. A flag without a row or a counterpart is left out with a
note, or refused (`strict`). An invalid value is always refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from sluice_contract.config.sizing import GENERAL

from sluice_operator.api.engine import EngineSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.cli.translate import sglang, vllm
from sluice_operator.cli.translate.rows import (
    REPLICAS,
    TWO_POOLS,
    Convert,
    Flag,
    NotCarriedError,
    Partly,
)

ENGINES: Final[Mapping[str, Sequence[Flag]]] = {"vllm": vllm.FLAGS, "sglang": sglang.FLAGS}
LARGEST_DEFAULT_PREFILL: Final = 16_384
"""Default of maxPrefillTokens; a chunk that is larger needs a larger maxPrefillTokens."""
_STARTS: Final = {
    engine: re.compile(rf"(?:.*/bin/)?(?:python[\d.]*|{engine})|-m|serve|{modules}")
    for engine, modules in {
        "vllm": r"vllm\.entrypoints\.openai\.api_server",
        "sglang": r"(?:sglang\.)?launch_server",
    }.items()
}
"""Words before an engine's flags in a command line that starts it."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*=.*", re.DOTALL)
"""A variable before the command, as in a shell."""
_SECRET: Final = re.compile(r"(?:key|token|secret|password)$")
"""Names of unknown flags whose values are not shown."""


class UntranslatableError(ValueError):
    """Flags that have no meaning here; `str()` has one line for each."""


@dataclass
class Translation:
    """Translated flags: the spec so far, with explanations."""

    spec: dict[str, Any] = field(default_factory=dict)
    """Spec of the InferenceService, as far as flags have set it."""
    comments: dict[str, list[str]] = field(default_factory=dict)
    """Explanations of settings, by path below `spec`."""
    lines: list[str] = field(default_factory=list)
    """Explanations of flags without a setting, in their order."""
    notes: list[str] = field(default_factory=list)
    """Notes about settings that are left out, changed, or assumed."""
    flags: dict[str, tuple[str, Flag]] = field(default_factory=dict)
    """Last flag that set each path: its name as written, and its row."""
    needing: list[tuple[str, Flag]] = field(default_factory=list)
    """Flags that have an effect only together with another one."""

    def note(self, text: str) -> None:
        """Adds a line and a note."""
        self.lines.append(text)
        self.notes.append(text)

    def put(self, path: str, value: Any, *comment: str) -> None:
        """Sets a value, and explains it."""
        *sections, last = path.split(".")
        place = self.spec
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
        if comment:
            self.comments.setdefault(path, []).extend(comment)

    def drop(self, path: str, why: str) -> None:
        """Removes a setting again, with a note."""
        *sections, last = path.split(".")
        place = self.spec
        for section in sections:
            place = place[section]
        value = place.pop(last)
        if not place and sections:
            self.spec.pop(sections[0])
        for known in [known for known in self.comments if f"{known}.".startswith(f"{path}.")]:
            self.lines += [f"{text}: left out" for text in self.comments.pop(known)]
        self.note(f"{path}: {json.dumps(value)} is left out: {why}")


def translate(engine: str, arguments: Sequence[str], *, strict: bool = False) -> Translation:
    """The spec that the flags of `engine` (one of ENGINES) ask for.

    Raises:
        UntranslatableError: a value is not understood, two flags contradict each other, or a flag
            would be left out and `strict` is set.
    """
    flags = {name: flag for flag in ENGINES[engine] for name in flag.names}
    result = Translation()
    errors: list[str] = []
    on_cpus = False
    for name, text in _flags(engine, _without_command(engine, arguments), flags):
        try:
            if name in flags:
                _carry_out(name, text, flags[name], result)
                on_cpus = text == "cpu" if name == "device" else on_cpus
            elif (opposite := flags.get(name.removeprefix("no-"))) and opposite.is_lost_switch:
                result.lines.append(f"--{name}: as it is here")
            else:
                near = _did_you_mean(name, flags)
                raise NotCarriedError(f"{'is' if strict else 'left out,'} not known here{near}")
        except NotCarriedError as why:
            if strict:
                errors.append(f"--{name}: {why}")
            else:
                result.note(f"{_shown(name, text, flags.get(name))}: {why}")
        except ValueError as error:
            errors.append(f"--{name}: {error}")
    for shown, flag in result.needing:
        if not _at(result.spec, flag.needs):
            result.notes.append(f"{shown}: not done: {flag.says}")
    if errors := errors or _spec_errors(result.spec):
        raise UntranslatableError("\n".join(errors))
    _add_consequences(result, on_cpus=on_cpus)
    return result


def _without_command(engine: str, arguments: Sequence[str]) -> list[str]:
    """The flags of a command line that starts the engine."""
    remaining = list(arguments)
    while remaining and _VARIABLE.fullmatch(remaining[0]):
        remaining.pop(0)
    while remaining and _STARTS[engine].fullmatch(remaining[0]):
        remaining.pop(0)
    return remaining


def _flags(
    engine: str, arguments: Sequence[str], flags: Mapping[str, Flag]
) -> Iterator[tuple[str, str | None]]:
    """Name and value of each flag; a word by itself is vLLM's model. A word after an unknown flag
    counts as its value. Parts of a JSON value (`--flag.key value`) are put together."""
    remaining = list(arguments)
    parts: dict[str, dict[str, Any]] = {}
    model: str | None = None
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("-"):
            if engine != "vllm":
                raise UntranslatableError(f"{word}: is no flag; allowed: --model-path {word}")
            if model is not None:
                raise UntranslatableError(f"{word}: is no flag; {model} is the model")
            model = word
            yield "model", word
            continue
        written, equals, text = word.lstrip("-").partition("=")
        name, dot, key = written.partition(".")
        name = name.replace("_", "-")
        flag = flags.get(name)
        value: str | None = text if equals else _value(flag, remaining)
        if dot and flag is not None:
            _add_part(parts.setdefault(name, {}), key, value)
        else:
            yield name + dot + key, value
    for name, settings in parts.items():
        yield name, json.dumps(settings)


def _value(flag: Flag | None, remaining: list[str]) -> str | None:
    """Takes a flag's value off the remaining words; None: it has no value."""
    takes = flag is None or flag.convert is not None
    if not takes or not remaining or remaining[0].startswith("--" if flag else "-"):
        return None
    words = [remaining.pop(0)]
    while flag is not None and flag.many and remaining and not remaining[0].startswith("-"):
        words.append(remaining.pop(0))
    return " ".join(words)


def _add_part(settings: dict[str, Any], path: str, text: str | None) -> None:
    *sections, last = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    try:
        settings[last] = json.loads(text or "true")
    except ValueError:
        settings[last] = text


def _did_you_mean(name: str, flags: Iterable[str]) -> str:
    near = get_close_matches(name, flags, n=1, cutoff=0.7)
    return f"; did you mean --{near[0]}?" if near else ""


def _shown(name: str, text: str | None, flag: Flag | None) -> str:
    is_secret = flag.is_secret if flag else _SECRET.search(name)
    return f"--{name}" if text is None or is_secret else f"--{name} {' '.join(text.split())}"


def _carry_out(name: str, text: str | None, flag: Flag, result: Translation) -> None:
    """Sets what the flag asks for, with an explanation.

    Raises:
        NotCarriedError: it has no counterpart.
    """
    if flag.convert is None and text is not None:
        raise ValueError(f"{text!r} is not allowed; allowed: the flag alone")
    if flag.convert is not None and text is None:
        raise ValueError("needs a value")
    if flag.lost:
        raise NotCarriedError(f"not done: {flag.says}")
    shown = _shown(name, text, flag)
    value = flag.value
    if flag.convert is not None and text is not None:
        value = _converted(flag.convert, text)
    if isinstance(value, Partly):
        for lost in value.lost:
            result.note(f"--{name}: not done: {lost}")
        value = value.value
    if flag.needs:
        result.needing.append((shown, flag))
    if not flag.path:
        result.lines.append(f"{shown}: {flag.says}")
        return
    settings = dict(_leaves(flag.path, value))
    for path, setting in {**settings, **flag.also}.items():
        _set(path, setting, shown, flag, result)
    explained = [path for path in settings if result.flags[path] == (shown, flag)]
    if explained:
        place = explained[0] if len(settings) == 1 else flag.path
        result.comments[place] = [f"{shown}: {flag.says}"]


def _converted(convert: Convert, text: str) -> Any:
    try:
        return convert(text)
    except NotCarriedError as error:
        raise NotCarriedError(f"not done: {error}") from None
    except ValueError as error:
        raise ValueError(f"{text!r} is not allowed; allowed: {error}") from None


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value


def _set(path: str, value: Any, shown: str, flag: Flag, result: Translation) -> None:
    """Sets one value, unless another flag for it takes precedence."""
    if path in result.flags:
        before, other = result.flags[path]
        if other is not flag and _at(result.spec, path) != value:
            if flag.yields:
                result.lines.append(f"{shown}: {before} has the say")
                return
            if not other.yields:
                raise ValueError(f"{shown} contradicts {before}: both set {path}")
            result.lines.append(f"{before}: {shown} has the say")
    result.flags[path] = (shown, flag)
    result.put(path, value)


def _at(spec: Mapping[str, Any], path: str) -> Any:
    value: Any = spec
    for key in path.split("."):
        value = value.get(key, {})
    return value


def _add_consequences(result: Translation, *, on_cpus: bool) -> None:
    """Adds the settings that other settings require."""
    spec = result.spec
    engine = spec.get("engine", {})
    chunk = engine.get("chunkSize", 0)
    if chunk > engine.get("maxPrefillTokens", LARGEST_DEFAULT_PREFILL):
        if "maxPrefillTokens" in engine:
            result.notes.append(f"engine.maxPrefillTokens: raised to {chunk}, the size of a chunk")
        result.put("engine.maxPrefillTokens", chunk, "a step may hold one chunk of prompts")
    tokens, page = engine.get("kvPoolTokens", 0), _page_size(spec)
    if tokens % page:
        whole = tokens - tokens % page
        text = f"{tokens} is rounded down to {whole}, whole pages of {page}"
        result.put("engine.kvPoolTokens", whole, text)
        result.notes.append(f"engine.kvPoolTokens: {text}")
    replicas = spec.pop(REPLICAS, 1)
    why = "; ".join(result.comments.pop(REPLICAS, ()))
    two_pools, says = spec.pop(TWO_POOLS, False), result.comments.pop(TWO_POOLS, ())
    if two_pools:
        result.put("prefill", {}, *says)
    else:
        result.lines += says
    if replicas > 1:
        for path in ("replicas", "prefill.replicas") if two_pools else ("replicas",):
            result.put(path, replicas, why)
    if not on_cpus:
        gpus = engine.get("tensorParallelSize", 1)
        result.put(
            "accelerator.count",
            gpus,
            "GPUs of one engine, of any product: product takes one, e.g. NVIDIA-L4",
        )


def _page_size(spec: Mapping[str, Any]) -> int:
    return int(spec.get("engine", {}).get("pageSize") or GENERAL["page_size"])


def _spec_errors(spec: Mapping[str, Any]) -> list[str]:
    """Errors in values that the API would refuse."""
    engine = spec.get("engine", {})
    try:
        parse(EngineSpec, engine, "engine")
    except InvalidSpecError as error:
        return [str(finding) for finding in error.findings]
    tokens, page = engine.get("kvPoolTokens"), _page_size(spec)
    if tokens is not None and tokens < page:
        return [f"engine.kvPoolTokens: {tokens} is not allowed; allowed: at least a page ({page})"]
    return []
