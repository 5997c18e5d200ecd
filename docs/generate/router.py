"""The page of the router's file: every key, from the types of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_contract.config.router import RouterConfig
from sluice_operator.api.schema import inlined_schema

from docs.generate.fields import Notes, key_table, sections_of
from docs.generate.markdown import GENERATED

HEAD: Final = """\
# router.json

The file of a [router](router.md): `python -m sluice_router --config router.json`. On a cluster the
operator writes it into a ConfigMap, and sets of it what follows from the InferenceService:
`discovery` and `server.drainSeconds`. Without one,
`python -m sluice_router --engines http://127.0.0.1:8000 --port 8080` needs no file, nor does
`--engines URL --prefill-engines URL --handover-key-file FILE` for a pair of engines.

Exactly one of `discovery` and `engines` is required; `handoverKeyFile` with the roles prefill and
decode, or with `prefillEngines`. Unknown keys are refused. A file that cannot
be used ends the process with exit status 2 and one line on stderr: key, value, what is allowed.

**Default** is what holds when a key is left out; where there is none, nothing does.
"""

PARTS: Final = ("discovery", "server", "upstream", "load")


def router_page() -> str:
    """docs/reference/router-configuration.md."""
    return "\n".join([GENERATED, HEAD, *_sections()]).rstrip("\n") + "\n"


def _sections() -> Iterator[str]:
    for section in sections_of(inlined_schema(RouterConfig), "", PARTS, Notes(), {}):
        yield from key_table(section, section.path or "Keys")
