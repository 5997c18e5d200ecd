"""The adapters of a service: where each comes from, and the URI that engines get instead."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from pydantic import Field

from sluice_operator.api.base import ApiModel, Rule

FILE_MOUNT: Final = "/etc/sluice/adapters"
"""Folder with the file of adapters that engines follow."""
CLAIMS_MOUNT: Final = "/mnt/adapters"
"""Folder with a folder for each claim with adapters, except the model's claim."""
MAX_CLAIMS: Final = 16
DEFAULT_REVISION: Final = "main"
"""Branch of a hub's repository where the URI names no revision."""
FOLDER_URI: Final = "pvc://[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?(/[^/:]+)+/?|file://(/[^/:]+)+/?"
REPOSITORY_URI: Final = (
    "hf://[A-Za-z0-9][-._A-Za-z0-9]{0,95}/[A-Za-z0-9][-._A-Za-z0-9]{0,95}"
    "(@[A-Za-z0-9_][-./A-Za-z0-9_]{0,127})?"
)
_URI: Final = f"{FOLDER_URI}|{REPOSITORY_URI}"
_CLAIM: Final = "pvc://"
_HUB: Final = "hf://"


class AdapterSpec(ApiModel):
    """A LoRA adapter that is served in addition to the model."""

    name: str = Field(
        min_length=1,
        max_length=256,
        description="What a request names as its `model` to be answered with this adapter.",
    )
    uri: str = Field(
        max_length=1024,
        description="Folder with it, in PEFT's format: pvc://claim/path (a volume of this "
        "namespace), file:///path (in the engine's image or a mounted volume), or a repository, "
        "hf://org/name@revision, which is downloaded to the volume of spec.model.cache; revision: "
        "a branch, tag or commit, main when left out.",
    )

    RULES: ClassVar = (
        Rule(
            f"self.uri.matches('^({_URI})$')",
            lambda s: re.fullmatch(_URI, s.uri) is not None,
            "pvc://claim/path, file:///path, hf://org/name, hf://org/name@revision (oci://image is "
            "not implemented for adapters; a claim's name has at most 253 characters)",
            "uri",
        ),
        Rule(
            "!self.uri.contains('/../') && !self.uri.endsWith('/..')",
            lambda s: "/../" not in s.uri and not s.uri.endswith("/.."),
            "a path without '..'",
            "uri",
        ),
    )

    @property
    def is_fetched(self) -> bool:
        """Whether it is downloaded from a hub."""
        return self.uri.startswith(_HUB)

    @property
    def repository(self) -> str:
        """org/name of an adapter that is downloaded."""
        return self.uri.removeprefix(_HUB).partition("@")[0]

    @property
    def revision(self) -> str:
        """Branch, tag or commit of an adapter that is downloaded."""
        return self.uri.partition("@")[2] or DEFAULT_REVISION

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim with the adapter; None where it is on none."""
        return claim_of(self.uri) or None

    def engine_uri(self, model_claim: str | None, model_mount: str) -> str:
        """The URI that engines get; the claim of the model is mounted at `model_mount`, once."""
        return mounted_uri(self.uri, model_claim, model_mount)


class HubDraft(AdapterSpec):
    """A draft model that is downloaded from a hub, as adapters are. Its name is its URI."""


def mounted_uri(uri: str, model_claim: str | None, model_mount: str) -> str:
    """`uri` or, if it is on a claim, the path at which engines find it."""
    if not (claim := claim_of(uri)):
        return uri
    mount = model_mount if claim == model_claim else f"{CLAIMS_MOUNT}/{claim}"
    return f"file://{mount}/{uri.removeprefix(_CLAIM + claim).strip('/')}"


def claim_of(uri: str) -> str:
    """The PersistentVolumeClaim in a URI; empty where it names none."""
    if not uri.startswith(_CLAIM):
        return ""
    return uri.removeprefix(_CLAIM).partition("/")[0]
