"""The operator's next release: other sizes, another engine's file, pods that are written otherwise.

Started as a program of its own, with `SLUICE_*_IMAGE` for other default images.
"""

from __future__ import annotations

from sluice_contract.config.sizing import GENERAL
from sluice_operator.__main__ import main
from sluice_operator.manifests.pods import POD_SECURITY
from sluice_operator.manifests.router import ROUTER_RESOURCES

GENERAL["max_running_requests"] = 77
POD_SECURITY["fsGroup"] = 1000
ROUTER_RESOURCES["requests"]["cpu"] = "60m"

if __name__ == "__main__":
    raise SystemExit(main())
