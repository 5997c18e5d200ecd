"""A program for tests: the real supervisor and API process beside the fake engine.

`with_fake_engine.py CONFIG [engine arguments]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sluice_runtime.process.child import started_child
from sluice_runtime.process.supervisor import Supervisor
from sluice_runtime.wire.endpoint import private_endpoint

FAKE_ENGINE = Path(__file__).parents[1] / "server" / "fake_engine.py"


def main() -> int:
    config, *engine_arguments = sys.argv[1:]
    with private_endpoint() as endpoint:
        common = ["--endpoint", endpoint]
        engine = [sys.executable, str(FAKE_ENGINE), *common, *engine_arguments]
        api = [sys.executable, "-m", "sluice_runtime.server", "--config", config, *common]
        return Supervisor({}).run(api=api, engine=started_child(engine, {}))


if __name__ == "__main__":
    sys.exit(main())
