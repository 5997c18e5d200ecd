"""`python -m sluice_operator`: the operator's process.

Reads the environment, connects, runs. Exits with 0 on SIGTERM, 2 when it is told something that
it cannot use, and 1 when it cannot go on and should be started again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from sluice_contract.base import ConfigError

from sluice_operator.clock import SystemClock
from sluice_operator.errors import OperatorError
from sluice_operator.run import run
from sluice_operator.settings import Settings
from sluice_operator.transport import HttpTransport

logger = logging.getLogger("sluice_operator")


def main() -> int:
    """The process's exit status."""
    try:
        settings = Settings.from_environment(os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    _log_to_stderr(settings.log_level)
    try:
        asyncio.run(_run(settings))
    except OperatorError as error:
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("cannot go on")
        return 1
    return 0


async def _run(settings: Settings) -> None:
    transport = HttpTransport(settings.request_timeout_seconds)
    try:
        await run(settings, transport, SystemClock())
    finally:
        await transport.close()


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    # Kopf tells of every event it hands on.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(level)))


if __name__ == "__main__":
    sys.exit(main())
