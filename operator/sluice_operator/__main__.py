"""`python -m sluice_operator`: the operator's process.

Reads the environment, connects, runs. Exits with 0 on SIGTERM, 2 when a
setting is invalid, and 1 when it cannot continue and should be restarted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import aclosing

from sluice_contract.base import ConfigError

from sluice_operator.clock import SystemClock
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.errors import LeaseLostError, OperatorError
from sluice_operator.log import fields, log_to_stderr
from sluice_operator.process.run import run
from sluice_operator.process.settings import Settings

logger = logging.getLogger("sluice_operator")


def main() -> int:
    """The process's exit status."""
    try:
        settings = Settings.from_environment(os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    log_to_stderr(settings.log_level, settings.log_format)
    try:
        asyncio.run(_run(settings))
    except (OperatorError, LeaseLostError) as error:
        logger.error("stopping", extra=fields(error=error))
        return 1
    except Exception:
        logger.exception("stopping")
        return 1
    return 0


async def _run(settings: Settings) -> None:
    timeout_seconds = settings.request_timeout_seconds
    async with aclosing(Connection(timeout_seconds)) as work:
        await run(settings, work, Connection(timeout_seconds), SystemClock())


if __name__ == "__main__":
    sys.exit(main())
