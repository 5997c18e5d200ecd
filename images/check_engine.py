"""Proves that an image compiles grammars and loads its kernels: exits 0, or says what is wrong.

A step of the build, with /app on the path. The compile process loads a library by names that are no
public API, and only when the first grammar comes: an image in which it does not start would serve
until then.
"""

import json
import sys

from sluice_kernels import native
from sluice_runtime.errors import CompileProcessError, GrammarError
from sluice_runtime.grammar.compile.process import CompileLimits, CompileProcess

MODEL = ("--model", "dummy://qwen3-tiny", "--vocabulary-size", "259")
JOB = {"kind": "json_schema", "text": '{"type": "integer"}'}


def main() -> int:
    limits = CompileLimits()
    bound = ("--memory-bytes", str(limits.memory_bytes))
    command = (sys.executable, "-m", "sluice_runtime.grammar.compile.worker", *MODEL, *bound)
    process = CompileProcess(command, limits)
    try:
        process.compile(json.dumps(JOB).encode())
    except (CompileProcessError, GrammarError) as error:
        print(f"check_engine: compile process: {error}", file=sys.stderr)
        return 1
    finally:
        process.stop()
    if missing := native.load():
        print(f"check_engine: kernels: {missing.message}", file=sys.stderr)
        return 1
    print("check_engine: grammars compile, kernels load")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
