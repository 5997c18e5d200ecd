"""The InferenceServices of files, each with its place: `two.yaml, document 2 (chat)`.

Reads files and standard input; checks nothing of a service.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from sluice_contract.log_lines import shown

from sluice_operator.cli.yaml_text import (
    DuplicateKeyError,
    ExpandedError,
    not_yaml,
    read_yaml_stream,
)
from sluice_operator.kube.kinds import INFERENCE_SERVICE

STANDARD_INPUT: Final = "-"


class UnusableFileError(ValueError):
    """A file that cannot be read, or has no InferenceService; `str()` does not name the file."""


@dataclass(frozen=True)
class Document:
    """One document of a file. Without a value, it stands for the file as a whole."""

    file: str
    number: int | None = None
    """Counted from 1; None where the file holds no other."""
    value: Any = None

    @property
    def name(self) -> str | None:
        """The name in its metadata, if it has one."""
        metadata = self.value.get("metadata") if isinstance(self.value, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        return name if isinstance(name, str) else None

    @property
    def place(self) -> str:
        """The file, and the number of the document where there are several."""
        file = "(stdin)" if self.file == STANDARD_INPUT else self.file
        if self.number is None:
            return file
        named = f" ({shown(self.name)})" if self.name else ""
        return f"{file}, document {self.number}{named}"


def read_documents(file: str) -> list[Document]:
    """The InferenceServices of a YAML or JSON file (`-`: standard input).

    Raises:
        UnusableFileError: there are none, or the file cannot be read.
    """
    entries = [
        (number, value) for number, value in enumerate(_read(file), start=1) if value is not None
    ]
    # A document without a kind is checked too, so that its author sees all errors.
    services = [entry for entry in entries if _is_service(entry[1])]
    if not services:
        kinds = sorted({str(value.get("kind")) for _, value in entries}) or ["nothing"]
        raise UnusableFileError(f"holds {', '.join(kinds)}; allowed: InferenceService")
    if len(entries) == 1:
        return [Document(file, None, services[0][1])]
    return [Document(file, number, value) for number, value in services]


def _read(file: str) -> list[Any]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text()
        return list(read_yaml_stream(text))
    except OSError as error:
        raise UnusableFileError(str(error.strerror)) from None
    except (DuplicateKeyError, ExpandedError) as error:
        raise UnusableFileError(str(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UnusableFileError(f"not YAML: {not_yaml(error)}") from None


def _is_service(document: Any) -> bool:
    if not isinstance(document, Mapping):
        return True
    return bool(document.get("kind", INFERENCE_SERVICE.kind) == INFERENCE_SERVICE.kind)
