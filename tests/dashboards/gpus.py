"""What dcgm-exporter answers on a node with two GPUs: the families and labels of its
`etc/default-counters.csv` and `etc/dcp-metrics-included.csv`, with values made up.

Knows no GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

GAUGES: Final[dict[str, tuple[float, float]]] = {
    "DCGM_FI_DEV_SM_CLOCK": (1980, 1755),
    "DCGM_FI_DEV_MEM_CLOCK": (2619, 2619),
    "DCGM_FI_DEV_MEMORY_TEMP": (52, 49),
    "DCGM_FI_DEV_GPU_TEMP": (44, 41),
    "DCGM_FI_DEV_POWER_USAGE": (512.6, 348.1),
    "DCGM_FI_DEV_GPU_UTIL": (98, 91),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (34, 71),
    "DCGM_FI_DEV_XID_ERRORS": (0, 31),
    "DCGM_FI_DEV_FB_FREE": (9210, 9466),
    "DCGM_FI_DEV_FB_USED": (134561, 134305),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.97, 0.9),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.46, 0.06),
    "DCGM_FI_PROF_DRAM_ACTIVE": (0.28, 0.66),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (2.1e9, 3.1e8),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (4.4e8, 1.9e9),
}
"""By family: of the GPU of a prefill and of a decode engine."""
PODS: Final = ("prefill-0", "decode-1")


def exposition(namespace: str = "default") -> str:
    """In Prometheus' text format."""
    lines = []
    for name, values in GAUGES.items():
        lines += [f"# HELP {name} {name}", f"# TYPE {name} gauge"]
        for gpu, (pod, value) in enumerate(zip(PODS, values, strict=True)):
            labels = {
                "gpu": str(gpu),
                "UUID": f"GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e5{gpu}",
                "device": f"nvidia{gpu}",
                "modelName": "NVIDIA H200",
                "Hostname": "node-1",
                "container": "engine",
                "namespace": namespace,
                "pod": pod,
            }
            told = ",".join(f'{key}="{text}"' for key, text in labels.items())
            lines.append(f"{name}{{{told}}} {value:g}")
    return "\n".join(lines) + "\n"


@contextmanager
def recorded_gpus() -> Iterator[str]:
    """Serves it; the URL."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
