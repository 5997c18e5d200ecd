"""Proves that an image reads memory with Mooncake, compiles and follows grammars, and loads its
kernels. Exits 0, or says why it does not.

A step of the build, with /app on the path. The processes for grammars load a library by names that
are no public API, and only when the first grammar comes: an image in which they do not start would
serve until then. Mooncake is loaded in the roles prefill and decode only. With ACCELERATOR=cuda see
`check_cuda` instead of reading.
"""

import ctypes
import json
import os
import sys

from sluice_kernels import native
from sluice_runtime.errors import GrammarError, GrammarProcessError
from sluice_runtime.grammar.compile.process import CompileLimits, CompileProcess
from sluice_runtime.grammar.follow.process import MaskWorkerProcess, MaskWorkerSizes

MODEL = ("--model", "dummy://qwen3-tiny", "--vocabulary-size", "259")
WORDS = 9
"""Of 32 tokens each."""
HOST, READ_BYTES = "127.0.0.1", 1 << 20
JOB = {"kind": "json_schema", "text": '{"type": "integer"}'}


def main() -> int:
    if os.environ.get("ACCELERATOR") == "cuda":
        import check_cuda

        if found := list(check_cuda.problems()):
            print("\n".join(f"check_engine: {one}" for one in found), file=sys.stderr)
            return 1
    elif unread := _unread():
        print(f"check_engine: Mooncake: {unread}", file=sys.stderr)
        return 1
    limits = CompileLimits()
    bound = ("--memory-bytes", str(limits.memory_bytes))
    command = (sys.executable, "-m", "sluice_runtime.grammar.compile.worker", *MODEL, *bound)
    process = CompileProcess(command, limits)
    try:
        followed = _followed(process.compile(json.dumps(JOB).encode()), process.tokenizer)
    except (GrammarProcessError, GrammarError) as error:
        print(f"check_engine: compile process: {error}", file=sys.stderr)
        return 1
    finally:
        process.stop()
    if followed:
        print(f"check_engine: mask worker: {followed}", file=sys.stderr)
        return 1
    if missing := native.load():
        print(f"check_engine: kernels: {missing.message}", file=sys.stderr)
        return 1
    print("check_engine: Mooncake is whole, grammars compile and are followed, kernels load")
    return 0


def _unread() -> str:
    """What is wrong, if anything, with one engine of Mooncake that reads another's memory."""
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        return str(error)
    sent, received = bytearray(os.urandom(READ_BYTES)), bytearray(READ_BYTES)
    source, target = TransferEngine(), TransferEngine()
    addresses = []
    for engine, memory in ((source, sent), (target, received)):
        if status := engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""):
            return f"initialize: status {status}"
        addresses.append(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        if status := engine.register_memory(addresses[-1], READ_BYTES):
            return f"register_memory: status {status}"
    session = f"{HOST}:{source.get_rpc_port()}"
    if status := target.transfer_sync_read(session, *reversed(addresses), READ_BYTES):
        return f"transfer_sync_read: status {status}"
    return "" if received == sent else "other bytes were read than are there"


def _followed(grammar: bytes, tokenizer: bytes) -> str:
    """What is wrong, if anything."""
    worker = MaskWorkerProcess(MaskWorkerSizes(1, WORDS, CompileLimits().memory_bytes), tokenizer)
    try:
        return worker.keep(0, grammar)
    finally:
        worker.close()


if __name__ == "__main__":
    raise SystemExit(main())
