"""`python -m sluice_fetch --uri hf://org/name --cache FOLDER`: JSON lines on stdout, one an event.

Exit codes: 0 complete, 1 a restart may help, 2 a restart will not help.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx2
from huggingface_hub import set_client_factory
from sluice_contract.cluster.termination import (
    EXIT_REFUSED,
    MODEL_FETCHED,
    MODEL_RESOLVED,
    TerminationMessage,
)

from sluice_fetch.bucket import bucket
from sluice_fetch.errors import FetchError, InvalidConfigError, TransientError
from sluice_fetch.fetch import Fetcher, Tell
from sluice_fetch.hub import Hub
from sluice_fetch.progress import ProgressServer
from sluice_fetch.retry import Retry, Wait
from sluice_fetch.settings import PROVIDERS, SOURCES, bucket_settings, source
from sluice_fetch.snapshot import ADAPTER, MODEL, Origin

HUB: Final = "https://huggingface.co"
EXIT_TRANSIENT: Final = 1


def main(arguments: Sequence[str] | None = None, wait: Wait = threading.Event.wait) -> int:
    """Fetches a model or resolves its revision; returns the exit code."""
    options = _parse(arguments)
    fetcher = Fetcher(
        _teller(options.progress_port),
        time.monotonic,
        Retry(wait),
        options.parallel,
        ADAPTER if options.adapter else MODEL,
    )
    try:
        if options.ca_file:
            trust(options.ca_file)
        model = _origin(options)
        if options.resolve_only:
            outcome = fetcher.facts(model).model_dump_json(by_alias=True, exclude_none=True)
        else:
            outcome = fetcher.fetch(model, options.cache).commit
    except FetchError as error:
        tell("failed", {"reason": error.reason, "message": str(error)})
        leave_message(error.reason, str(error))
        return EXIT_TRANSIENT if isinstance(error, TransientError) else EXIT_REFUSED
    leave_message(MODEL_RESOLVED if options.resolve_only else MODEL_FETCHED, outcome)
    return 0


def _origin(options: argparse.Namespace) -> Origin:
    """Origin of the model that the options name."""
    uri, revision, secret = options.uri, options.revision, options.token_file
    if uri.partition("://")[0] in PROVIDERS:
        certificates = options.ca_file.read_text() if options.ca_file else None
        settings = bucket_settings(uri, revision, options.endpoint, secret, os.environ)
        return bucket(settings, certificates)
    endpoint = options.endpoint or os.environ.get("HF_ENDPOINT") or HUB
    return Hub(source(uri, revision, endpoint, secret))


def _teller(port: int | None) -> Tell:
    """A `Tell` that prints events and, with a `port`, serves progress there. A taken port does not
    stop the download."""
    if port is None:
        return tell
    try:
        server = ProgressServer(os.environ.get("POD_IP") or "127.0.0.1", port)
    except OSError as error:
        tell("progressNotServed", {"port": port, "message": str(error)})
        return tell

    def both(event: str, fields: Mapping[str, object]) -> None:
        tell(event, fields)
        if event == "progress":
            server.show(fields)

    return both


def tell(event: str, fields: Mapping[str, object]) -> None:
    """Prints an event as one line of JSON."""
    print(json.dumps({"event": event} | dict(fields)), flush=True)


def leave_message(reason: str, message: str) -> None:
    """Writes the termination message where Kubernetes looks for it; outside Kubernetes that file
    does not exist."""
    path = Path(os.environ.get("SLUICE_TERMINATION_LOG") or "/dev/termination-log")
    if path.exists():
        line = " ".join(message.split())
        path.write_bytes(TerminationMessage(reason=reason, message=line).to_bytes())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sluice_fetch", description=__doc__)
    parser.add_argument("--uri", required=True, metavar="URI", help=SOURCES)
    parser.add_argument("--revision", default="main", help="branch, tag or commit (main)")
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help=f"a hub or its mirror (HF_ENDPOINT, else {HUB}); a store that speaks S3",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the hub's token; of a bucket: lines NAME=value of AWS_…, GOOGLE_… or AZURE_…",
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="trusted beside the public authorities"
    )
    parser.add_argument("--parallel", type=int, default=4, choices=range(1, 17), metavar="1…16")
    parser.add_argument(
        "--adapter", action="store_true", help="a LoRA adapter in PEFT's format, not a model"
    )
    parser.add_argument(
        "--progress-port", type=int, metavar="PORT", help="GET /progress, at $POD_IP or loopback"
    )
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--cache", type=Path, metavar="FOLDER", help="Hugging Face's layout")
    to.add_argument("--resolve-only", action="store_true", help="print the commit, fetch nothing")
    options = parser.parse_args(arguments)
    if options.resolve_only and options.adapter:
        parser.error("argument --resolve-only: not allowed with argument --adapter")
    return options


def _end_on_sigterm() -> None:
    """Ends the process on SIGTERM, which process 1 of a container would otherwise ignore. Nothing
    needs cleaning up: the next run resumes. It waits in a thread, since a signal handler would have
    to wait until the main thread returns from a read."""

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        os._exit(128 + signal.SIGTERM)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, name="sigterm", daemon=True).start()


if __name__ == "__main__":
    _end_on_sigterm()
    sys.exit(main())


def trust(file: Path) -> None:
    """Makes every later connection to a hub trust the certificates in `file` too.

    Raises:
        InvalidConfigError: the file cannot be read, or holds no certificate.
    """
    context = httpx2.create_ssl_context()
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ssl.SSLError) as error:
        text = f"--ca-file: {file} is not allowed: {error}; allowed: a file of PEM certificates"
        raise InvalidConfigError(text) from None
    set_client_factory(lambda: httpx2.Client(verify=context, follow_redirects=True))
