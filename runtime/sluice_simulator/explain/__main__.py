"""`python -m sluice_simulator.explain`: a question on standard input, its answer on the output.

Both are JSON (`sluice_contract.wire.explain`); `sluice explain` asks. Where the simulator's
dependencies are missing, the answer says what to install.
"""

from __future__ import annotations

import sys

from pydantic import ValidationError
from sluice_contract.wire.explain import Answer, Question

UNUSABLE = 2


def main() -> int:
    """The command's exit status."""
    try:
        question = Question.model_validate_json(sys.stdin.buffer.read())
        print(answer_or_missing(question).model_dump_json(by_alias=True))
    except (ValidationError, ValueError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    return 0


def answer_or_missing(question: Question) -> Answer:
    """The answer; where a package is missing, which one and what installs it."""
    try:
        from sluice_simulator.explain.answer import answered
    except ModuleNotFoundError as error:
        text = f"the simulator needs {error.name}, which is not installed: make setup"
        return Answer(cost_source="", kv_pool_tokens=0, missing=text)
    return answered(question)


if __name__ == "__main__":
    sys.exit(main())
