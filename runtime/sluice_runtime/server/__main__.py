"""`python -m sluice_runtime.server --config FILE --endpoint ipc://PATH`: the API process.

Started by the supervisor (`launch`), next to the engine process.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import prometheus_client
import uvloop
from sluice_contract.base import ConfigError
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import read_engine_config
from sluice_contract.config.sizing import planned_config
from sluice_contract.log_lines import log_to_stderr

from sluice_runtime.errors import InvalidConfigError, StartupError
from sluice_runtime.process import exits
from sluice_runtime.process.spans import recorder
from sluice_runtime.server.process import serve
from sluice_runtime.wire.transport import TransportError


def main() -> int:
    """Serves until a signal; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sluice_runtime.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--accelerator", default="{}", help="what the engine computes on, as JSON")
    options = parser.parse_args()
    log_to_stderr()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        config = read_engine_config(options.config)
        with (
            recorder(config, "api") as record,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            accelerator = Accelerator.model_validate_json(options.accelerator)
            return runner.run(serve(planned_config(config), options.endpoint, accelerator, record))
    except ConfigError as error:
        return exits.give_up(InvalidConfigError.reason, str(error), exits.STARTUP)
    except StartupError as error:
        return exits.give_up(error.reason, str(error), exits.STARTUP)
    except TransportError as error:
        return exits.give_up("ProtocolMismatch", str(error), exits.FAILED)


if __name__ == "__main__":
    sys.exit(main())
