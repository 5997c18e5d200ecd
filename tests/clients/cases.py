"""What clients are asked to do, by a program in an environment that has the client, and nothing of
ours but this folder. Needs the standard library only.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from e2e.model.tasks import make_prompt

MODEL: Final = "qwen3"
"""What the small model of `e2e/model` is served as, as on the page."""
KEY: Final = "none"
PAGE: Final = Path("docs/how-to/use-with-openai-clients.md")
PAGE_URL: Final = "http://localhost:8000/v1"
MESSAGE_CHARACTERS: Final = 600

_QUESTION, ANSWER = make_prompt("copy", 32, seed=1)
QUESTION: Final = _QUESTION.removesuffix("\n")
_LOOKUP, VALUE = make_prompt("lookup", 32, seed=1)
CONTEXT, LOOKED_UP = _LOOKUP.removesuffix("\n").rsplit("\n", 1)
"""A conversation: the context, a call of a tool, its result `LOOKED_UP`, then `VALUE`."""

PARAMETERS: Final = {
    "type": "object",
    "properties": {"name": {"enum": ["which"]}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL: Final = {"name": "key", "description": "Tells the key.", "parameters": PARAMETERS}

Case = Callable[[str], None]


def named(name: str, case: Case) -> Case:
    """The case under another name."""

    def run(url: str) -> None:
        case(url)

    run.__name__ = name
    return run


def snippet(heading: str, url: str) -> str:
    """The page's Python below a heading, asking `url`."""
    section = f"^## {re.escape(heading)}\n(.*?)(?=^## |\\Z)"
    (found,) = re.findall(section, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```python\n(.*?)^```$", found, re.MULTILINE | re.DOTALL)
    assert blocks, f"{PAGE} has no Python below {heading}"
    base = PAGE_URL.removesuffix("/v1")  # which is all that Anthropic's client is given
    return "".join(blocks).replace(base, url.removesuffix("/v1"))


def run_snippet(heading: str, url: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(snippet(heading, url), str(PAGE), "exec", dont_inherit=True), names)


def run(heading: str, cases: Sequence[Case]) -> None:
    """Runs the cases and what the page has below `heading`."""
    (url,) = sys.argv[1:]

    def page(url: str) -> None:
        run_snippet(heading, url)

    run_cases((*cases, page), url)


def run_cases(cases: Iterable[Case], url: str) -> NoReturn:
    """Tells of the cases that fail; the last line is what each said, by name, "" of those that
    pass."""
    outcomes: dict[str, str] = {}
    for case in cases:
        outcomes[case.__name__] = ""
        try:
            case(url)
        except Exception as error:
            outcomes[case.__name__] = f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS]
            print(f"--- {case.__name__}", traceback.format_exc()[-3000:], file=sys.stderr)
    print(f"\n{json.dumps(outcomes)}")
    sys.exit(any(outcomes.values()))
