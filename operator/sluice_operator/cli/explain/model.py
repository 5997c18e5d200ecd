"""A model that this version cannot deliver yet is explained all the same: as if it were on a claim.

Sizes and what pays do not depend on where the files come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.model_uri import SERVED_SCHEMES, scheme_of

STAND_IN: Final = "pvc://model"


def explainable(document: Any) -> tuple[Any, str | None]:
    """The service with a model that can be served, and the URI of the one it has; None where
    nothing was changed."""
    if not isinstance(document, Mapping) or not isinstance(document.get("spec"), Mapping):
        return document, None
    spec = document["spec"]
    model = spec.get("model")
    if not isinstance(model, Mapping) or (uri := _for_later(model)) is None:
        return document, None
    name = model.get("name") or uri.rstrip("/").rpartition("/")[2]
    changed = {**spec, "model": {**model, "uri": STAND_IN, "name": name}}
    return {**document, "spec": changed}, uri


def said_of(uri: str) -> str:
    """For people."""
    return f"{uri}: not implemented yet, explained as if its files were on a claim"


def _for_later(model: Mapping[str, Any]) -> str | None:
    """The URI of a model that is valid and not served yet; other mistakes are for the plan."""
    try:
        found = parse(ModelSpec, model, "spec.model")
    except InvalidSpecError:
        return None
    return None if scheme_of(found.uri) in SERVED_SCHEMES else found.uri
