"""The compile process: reads grammars and writes compiled ones, one at a time.

`python -m sluice_runtime.grammar.compile.worker --model URI --vocabulary-size N --memory-bytes N`.
Its first frame is the tokenizer, each other one replies to a frame that it read; it ends with its
input. It limits its own memory and is the first that the kernel kills when a pod has none left. The
engine limits its time. Imports no torch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from sluice_runtime.errors import GrammarError, ModelLoadError
from sluice_runtime.grammar.bounds import bound_this_process, without_torch
from sluice_runtime.grammar.frames import (
    DONE,
    FAILED,
    TOO_LARGE,
    BrokenFrameError,
    read_frame,
    write_frame,
)
from sluice_runtime.wire.messages import GrammarKind

_INPUT: Final = 0
_OUTPUT: Final = 1
_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE: Final = 1000
_NICE: Final = 5


class Job(msgspec.Struct, frozen=True):
    """A frame to this process, as JSON."""

    kind: GrammarKind
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the engine closes the pipe; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--vocabulary-size", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    options = parser.parse_args(arguments)
    bound_this_process(options.memory_bytes, _OOM_SCORE)
    os.nice(_NICE)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it may be too busy to read
    without_torch()
    try:
        _serve(options.model, options.vocabulary_size)
    except BrokenFrameError:
        return 0
    except ModelLoadError as error:
        write_frame(_OUTPUT, FAILED + str(error).encode())
        return 1
    return 0


def _serve(uri: str, vocabulary_size: int) -> None:
    import numpy as np

    from sluice_runtime.grammar.compile.compiling import compile_grammar
    from sluice_runtime.grammar.native import RAW, GrammarCompiler, TokenizerInfo
    from sluice_runtime.grammar.vocabulary import token_bytes
    from sluice_runtime.model.files import resolve

    tokens = token_bytes(resolve(uri), vocabulary_size)
    tokenizer = TokenizerInfo(tokens, RAW, vocabulary_size, [], False)
    write_frame(_OUTPUT, DONE + str(tokenizer.serialize_json()).encode())
    compiler = GrammarCompiler(tokenizer, 1, False, 0)
    lengths = np.array([len(token) for token in tokens])
    while True:
        job = msgspec.json.decode(read_frame(_INPUT), type=Job)
        try:
            answer = DONE + compile_grammar(compiler, job.kind, job.text, lengths).encode()
        except GrammarError as error:
            answer = FAILED + str(error).encode()
        except MemoryError:
            answer = TOO_LARGE
        write_frame(_OUTPUT, answer)


if __name__ == "__main__":
    sys.exit(main())
