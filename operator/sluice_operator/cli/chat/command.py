"""`sluice chat NAME [PROMPT]`: talks to a service of the cluster.

Reads with the rights of the kubeconfig's user, so it needs neither an Ingress nor a forwarded port.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, TextIO

from sluice_operator.cli.chat.completion import ChatClient, ChatRefusedError, Message
from sluice_operator.cli.chat.word_wrap import WordWrap
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.errors import OperatorError

FAILED: Final = 1
UNUSABLE: Final = 2
TIMEOUT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 600.0
"""Longest wait for the next piece of an answer; a service at zero replicas starts meanwhile."""
MAX_TOKENS: Final = 1024
"""Tokens after which an answer is cut: a small model may repeat itself up to its context."""
KEY_VARIABLE: Final = "SLUICE_API_KEY"
DIM: Final = "\x1b[2m{}\x1b[0m"
PROMPT: Final = "> "
DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""What a part of a request's path may be."""
STATUSES: Final = (
    "With PROMPT, or with a prompt on standard input: one answer on standard output. Otherwise a "
    "conversation: /clear forgets it, Ctrl-C ends an answer, /exit ends it, and so does Ctrl-D at "
    f"the prompt. A key of the service is in {KEY_VARIABLE} or in --key-file. Exit status: 0; 1 "
    "where there is no such service, or no answer; 2 where there is no cluster, a right is "
    "missing, or an option is unusable; 130 after Ctrl-C."
)


def run(arguments: Sequence[str]) -> int:
    """The command; see `STATUSES`."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    prompt = options.prompt
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        parser.error("PROMPT: empty")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it ends an answer alone
    try:
        key = options.key_file.read_text().strip() if options.key_file else None
    except (OSError, UnicodeDecodeError) as error:
        print(f"sluice chat: --key-file: {options.key_file}: {error}", file=sys.stderr)
        return UNUSABLE
    try:
        with asyncio.Runner() as runner:
            return _chat(runner, options, prompt, key or os.environ.get(KEY_VARIABLE))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, ChatRefusedError) as error:
        print(f"sluice chat: {error}", file=sys.stderr)
        return FAILED
    except OperatorError as error:
        print(f"sluice chat: {error}", file=sys.stderr)
        return UNUSABLE


def _chat(
    runner: asyncio.Runner, options: argparse.Namespace, prompt: str | None, key: str | None
) -> int:
    connection = Connection(TIMEOUT_SECONDS, silence_seconds=SILENCE_SECONDS)
    try:
        namespace = options.namespace or runner.run(connection.namespace())
        client = ChatClient(connection, namespace, options.name, key)
        model = options.model or runner.run(client.base_model())
        conversation = Conversation(client, model, options.max_tokens)
        if prompt is not None:
            runner.run(conversation.ask(prompt))
            return 0
        return _converse(runner, conversation, f"{namespace}/{options.name}")
    finally:
        runner.run(connection.aclose())


def _converse(runner: asyncio.Runner, conversation: Conversation, where: str) -> int:
    """Asks what a person types, until the end of the input."""
    with suppress(ImportError):
        import readline  # noqa: F401  # `input` then edits lines
    print(_dim(f"{conversation.model} of {where}; /clear forgets, /exit leaves"), file=sys.stderr)
    while True:
        try:
            prompt = input(PROMPT).strip()
        except EOFError:
            print()
            return 0
        if prompt == "/exit":
            return 0
        if prompt == "/clear":
            conversation.clear()
        elif prompt:
            try:
                runner.run(conversation.ask(prompt))
            except KeyboardInterrupt:
                print()
            except OperatorError as error:
                print(f"sluice chat: {error}", file=sys.stderr)


class Conversation:
    """What was said so far. An answer that failed is forgotten together with its question."""

    def __init__(
        self,
        client: ChatClient,
        model: str,
        max_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.model = model
        self._client = client
        self._max_tokens = max_tokens
        self._clock = clock
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._messages: list[Message] = []

    def clear(self) -> None:
        """Forgets everything that was said."""
        self._messages.clear()

    async def ask(self, prompt: str) -> None:
        """Prints the answer as it is generated, and remembers it.

        Raises:
            OperatorError: see `ChatClient.answer`; what had arrived is printed.
        """
        question = {"role": "user", "content": prompt}
        wrap = WordWrap(shutil.get_terminal_size().columns)
        answer, tokens = "", None
        begun = first = last = self._clock()
        is_cut, messages = False, [*self._messages, question]
        async with aclosing(self._client.answer(self.model, messages, self._max_tokens)) as pieces:
            async for piece in pieces:
                is_cut |= piece.is_cut
                if piece.text or piece.reasoning:
                    last = self._clock()
                    first = last if first == begun else first
                tokens = piece.tokens if piece.tokens is not None else tokens
                answer += piece.text
                self._show(piece.reasoning, wrap, is_answer=False)
                self._show(piece.text, wrap)
        self._show("" if answer.endswith("\n") else "\n", wrap)
        if is_cut:
            text = f"cut after {self._max_tokens} tokens; --max-tokens allows more"
            print(_dim(text) if self._err.isatty() else text, file=self._err)
        self._messages += [question, {"role": "assistant", "content": answer}]
        if self._err.isatty() and tokens:
            speed = f", {(tokens - 1) / (last - first):.1f} tokens/s" if last > first else ""
            text = f"TTFT {1000 * (first - begun):.0f} ms{speed}, {tokens} tokens"
            print(_dim(text), file=self._err)

    def _show(self, text: str, wrap: WordWrap, *, is_answer: bool = True) -> None:
        """Prints an answer's text; on a terminal also reasoning, broken between words, and
        no character of it that moves a cursor."""
        if self._out.isatty():
            text = "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")
            text = wrap.chunk(text)
            text = text if is_answer or not text else _dim(text)
        elif not is_answer:
            return
        self._out.write(text)
        self._out.flush()


def _dim(text: str) -> str:
    return DIM.format(text)


def _dns_label(word: str) -> str:
    if not DNS_LABEL.fullmatch(word):
        allowed = "a DNS label: a-z, 0-9 and '-', at most 63, first and last no '-'"
        raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: {allowed}")
    return word


def _parser() -> argparse.ArgumentParser:
    text = "Talks to the model of a service, through the API server with your own rights."
    parser = argparse.ArgumentParser(prog="sluice chat", description=text, epilog=STATUSES)
    parser.add_argument("name", metavar="NAME", type=_dns_label, help="of an InferenceService")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="(default: a conversation)")
    text = f"of an answer, which is cut there (default: {MAX_TOKENS})"
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=text)
    text = "default: that of the kubeconfig's context"
    parser.add_argument("-n", "--namespace", type=_dns_label, help=text)
    parser.add_argument("-m", "--model", help="or an adapter; default: the service's model")
    text = f"file with a key of the service (default: {KEY_VARIABLE})"
    parser.add_argument("--key-file", type=Path, metavar="FILE", help=text)
    return parser
