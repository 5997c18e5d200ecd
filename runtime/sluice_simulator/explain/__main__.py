"""`python -m sluice_simulator.explain`: a question on standard input, its answer on the output.

Both are JSON (`sluice_contract.wire.explain`); `sluice explain` asks. Where the simulator's
dependencies are missing, the answer says what to install. A terminal at standard error gets the
progress.
"""

from __future__ import annotations

import sys

from pydantic import ValidationError
from sluice_contract.wire.explain import Answer, Question

INTERRUPTED = 130


def main() -> int:
    """The command's exit status."""
    try:
        question = Question.model_validate_json(sys.stdin.buffer.read())
        answer = answer_or_missing(question)
    except (ValidationError, ValueError) as error:
        answer = Answer(cost_source="", kv_pool_tokens=0, missing=str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    print(answer.model_dump_json(by_alias=True))
    return 0


def answer_or_missing(question: Question) -> Answer:
    """The answer; where a package is missing, which one and what installs it."""
    try:
        from sluice_simulator.explain.answer import answered
    except ModuleNotFoundError as error:
        text = f"the simulator needs {error.name}, which is not installed: make setup"
        return Answer(cost_source="", kv_pool_tokens=0, missing=text)
    return answered(question, _show if sys.stderr.isatty() else lambda line: None)


def _show(line: str) -> None:
    print(f"… {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
