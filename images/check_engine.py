"""Proves that an image reads memory with Mooncake, compiles and follows grammars, and loads its
kernels. Exits 0, or says why it does not.

A step of the build, with /app on the path. Mooncake is loaded in the roles prefill and decode only.
With ACCELERATOR=cuda see `check_cuda` instead of reading.
"""

import ctypes
import os
import sys

from sluice_kernels import native

HOST, READ_BYTES = "127.0.0.1", 1 << 20
BYTES = [bytes([value]) for value in range(256)]


def main() -> int:
    if os.environ.get("ACCELERATOR") == "cuda":
        import check_cuda

        if found := list(check_cuda.problems()):
            print("\n".join(f"check_engine: {one}" for one in found), file=sys.stderr)
            return 1
    elif unread := _unread():
        print(f"check_engine: Mooncake: {unread}", file=sys.stderr)
        return 1
    if unfollowed := _unfollowed():
        print(f"check_engine: grammars: {unfollowed}", file=sys.stderr)
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


def _unfollowed() -> str:
    """What is wrong, if anything, with a grammar and its first mask."""
    try:
        from sluice_runtime.errors import GrammarError
        from sluice_runtime.grammar.constraint import compiled
        from sluice_runtime.grammar.vocabulary import tokenizer_of
    except ImportError as error:
        return str(error)
    try:
        mask = compiled(tokenizer_of(BYTES), "regex", "[0-9]").matcher.compute_bitmask()
    except GrammarError as error:
        return str(error)
    allowed = [token for token in range(256) if mask[token // 8] >> token % 8 & 1]
    return "" if bytes(allowed) == b"0123456789" else f"allowed are {allowed}"


if __name__ == "__main__":
    raise SystemExit(main())
