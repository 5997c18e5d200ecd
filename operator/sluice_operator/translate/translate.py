"""Flags of another engine → the spec of an InferenceService, each with a line of explanation.

Pure: words in, a frozen value out. What no table knows is refused by name, never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from sluice_contract.supported import unsupported

from sluice_operator.api.engine import EngineSpec
from sluice_operator.translate import sglang, vllm
from sluice_operator.translate.rows import Flag

ENGINES: Final[Mapping[str, Sequence[Flag]]] = {"vllm": vllm.FLAGS, "sglang": sglang.FLAGS}
LARGEST_DEFAULT_PREFILL: Final = 16_384
"""maxPrefillTokens when it is left out; a larger chunk needs a larger one."""
_COMMANDS: Final = frozenset({"vllm", "serve", "sglang", "python", "python3", "launch_server"})


class UntranslatableError(ValueError):
    """Flags that have no meaning here; `str()` has one line for each."""


@dataclass(frozen=True)
class Translation:
    """`spec`: what to put into an InferenceService. `lines`: one for each flag, in their order.
    `notes`: what this version does not have yet."""

    spec: dict[str, Any]
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def translate(engine: str, given: Sequence[str]) -> Translation:
    """The spec that the flags of `engine` (one of ENGINES) ask for.

    Raises:
        UntranslatableError: a flag is unknown, or its value is.
    """
    known = {name: flag for flag in ENGINES[engine] for name in flag.names}
    spec: dict[str, Any] = {}
    lines: list[str] = []
    mistakes: list[str] = []
    for name, text in _flags(given, known):
        try:
            lines.append(_carry_out(name, text, known.get(name), spec))
        except ValueError as error:
            mistakes.append(f"--{name}: {error}")
    if not mistakes:
        mistakes += _mistakes(spec)
    if mistakes:
        raise UntranslatableError("\n".join(mistakes))
    lines += _consequences(spec)
    return Translation(spec, tuple(lines), tuple(_notes(spec)))


def _flags(given: Sequence[str], known: Mapping[str, Flag]) -> Iterator[tuple[str, str | None]]:
    """Name and value of each flag; a word by itself is the model."""
    words = list(given)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            if word not in _COMMANDS:
                yield "model", word
            continue
        name, equals, text = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        flag = known.get(name)
        takes = flag.convert is not None if flag else bool(words) and not words[0].startswith("-")
        if equals:
            yield name, text
        elif takes and words and (flag is None or not words[0].startswith("--")):
            yield name, words.pop(0)
        else:
            yield name, None


def _carry_out(name: str, text: str | None, flag: Flag | None, spec: dict[str, Any]) -> str:
    """Sets what the flag asks for, and says so."""
    if flag is None:
        raise ValueError("is not known here; allowed: a flag that has a setting of Sluice")
    if flag.convert is None and text is not None:
        raise ValueError(f"{text!r} is not allowed; allowed: the flag alone")
    if flag.convert is not None and text is None:
        raise ValueError("needs a value")
    shown = f"--{name}" if text is None else f"--{name} {text}"
    if not flag.path:
        return f"{shown}: {flag.says}"
    value = flag.value
    if flag.convert is not None and text is not None:
        try:
            value = flag.convert(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not allowed; allowed: {error}") from None
    for path, asked in ((flag.path, value), *flag.also.items()):
        _put(spec, path, asked)
    return f"{shown} is {flag.path}: {_yaml(value)} ({flag.says})"


def _consequences(spec: dict[str, Any]) -> Iterator[str]:
    """Settings that others need beside them."""
    engine = spec.get("engine", {})
    chunk = engine.get("chunkSize", 0)
    if chunk > engine.get("maxPrefillTokens", LARGEST_DEFAULT_PREFILL):
        _put(spec, "engine.maxPrefillTokens", chunk)
        yield f"and so engine.maxPrefillTokens: {chunk} (a step may hold one chunk of prompts)"


def _mistakes(spec: Mapping[str, Any]) -> list[str]:
    """Values that the API would refuse."""
    try:
        EngineSpec.model_validate(spec.get("engine", {}))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        return [f"engine.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found]
    return []


def _notes(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("mode") == "Disaggregated":
        yield "mode: Disaggregated is not implemented yet"
    for error in unsupported(EngineSpec.model_validate(spec.get("engine", {}))):
        yield f"engine.{error}"


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        spec = spec.setdefault(section, {})
    spec[last] = value


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
