"""`python -m sluice_router --config FILE`, or `--engines URL,URL` without a cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop
from prometheus_client import disable_created_metrics
from pydantic import ValidationError
from sluice_contract.base import ConfigError, config_error_from
from sluice_contract.cluster.termination import TerminationMessage
from sluice_contract.config.router import RouterConfig, RouterServer, read_router_config
from sluice_contract.log_lines import log_to_stderr

from sluice_router.serve import serve

TERMINATION_LOG = Path("/dev/termination-log")
EXIT_BAD_CONFIG = 2
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; the exit code."""
    log_to_stderr()
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    options = _parse(arguments)
    try:
        logging.getLogger("sluice").setLevel(_log_level(os.environ.get("SLUICE_LOG_LEVEL", "INFO")))
        config = read_router_config(options.config) if options.config else _from_flags(options)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config))
    except ConfigError as error:
        return _refuse(error)
    return 0


def _without_traceback(record: logging.LogRecord) -> bool:
    """Keep the HTTP library's record as a warning of one line: what clients send is not its bug."""
    if record.exc_info:
        record.msg, record.args = "%s: %r", (record.getMessage(), record.exc_info[1])
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _log_level(name: str) -> str:
    """The level of the router's own lines only: at debug, those of libraries would drown them."""
    if name not in LOG_LEVELS:
        raise ConfigError("SLUICE_LOG_LEVEL", name, ", ".join(LOG_LEVELS))
    return name


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sluice_router", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="the router's JSON file")
    source.add_argument("--engines", metavar="URL,…", help="base URLs of engines, no cluster")
    parser.add_argument(
        "--prefill-engines",
        metavar="URL,…",
        help="with --engines, which then decode: base URLs of prefill engines",
    )
    parser.add_argument(
        "--handover-key-file",
        metavar="FILE",
        help="the key that all engines have: required with --prefill-engines; with it, answers "
        "that break off are resumed",
    )
    parser.add_argument("--host", help="with --engines: address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="with --engines (8080)")
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="with --engines (a free one, see the log)"
    )
    return parser.parse_args(arguments)


def _from_flags(options: argparse.Namespace) -> RouterConfig:
    try:
        server = RouterServer(
            host=options.host, port=options.port, metrics_port=options.metrics_port
        )
        prefill = options.prefill_engines
        return RouterConfig(
            engines=tuple(options.engines.split(",")),
            prefill_engines=tuple(prefill.split(",")) if prefill else None,
            handover_key_file=options.handover_key_file,
            server=server,
        )
    except ValidationError as error:
        raise config_error_from(error, RouterConfig) from None


async def _run(config: RouterConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # the second one ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    await serve(config, os.environ, stop)


def _refuse(error: ConfigError) -> int:
    print(f"router: {error}", file=sys.stderr)
    if TERMINATION_LOG.exists():
        message = TerminationMessage(reason="InvalidConfig", message=str(error))
        TERMINATION_LOG.write_bytes(message.to_bytes())
    return EXIT_BAD_CONFIG


if __name__ == "__main__":
    sys.exit(main())
