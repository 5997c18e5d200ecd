"""LoRA adapters of a model: how an engine gets them, in its own file or in one it follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field, ValidationError

from sluice_contract.base import ContractModel, config_error_from

DEFAULT_MAX_LORAS_PER_BATCH: Final = 8
LEAST_MAX_LORA_RANK: Final = 16
"""Default of the largest LoRA rank is at least this, to leave room for adapters that come later."""
MAX_ADAPTERS: Final = 256
_DIGEST_DIGITS: Final = 16


class AdapterRef(ContractModel):
    """A LoRA adapter of the model."""

    name: str = Field(
        min_length=1,
        max_length=256,
        description="What a request names as its `model` to be answered with this adapter.",
    )
    uri: str = Field(
        min_length=1,
        max_length=2048,
        description="Where it is: the path of a folder, or file:///path, in PEFT's format.",
    )


AdapterRefs = Annotated[tuple[AdapterRef, ...], Field(max_length=MAX_ADAPTERS)]


class AdaptersFile(ContractModel):
    """A file that an engine follows; its adapters are loaded, and those that leave it are
    unloaded."""

    adapters: AdapterRefs = ()


def parse_adapters_file(content: bytes) -> AdapterRefs:
    """The adapters in the file's content.

    Raises:
        ConfigError: the content is not valid; one line with key, value and what is allowed.
    """
    try:
        return AdaptersFile.model_validate_json(content).adapters
    except ValidationError as error:
        raise config_error_from(error, AdaptersFile) from None


def render_adapters_file(adapters: Sequence[AdapterRef]) -> str:
    """The file's text."""
    content = AdaptersFile(adapters=tuple(adapters)).to_json_dict()
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def adapters_digest(content: bytes) -> str:
    """Digest of the file's content, by which an engine reports which version it has applied."""
    return hashlib.sha256(content).hexdigest()[:_DIGEST_DIGITS]
