"""What NVIDIA's dcgm-exporter tells of the GPUs of a service's engines.

Names of its `etc/default-counters.csv` (https://github.com/NVIDIA/dcgm-exporter at b54068a) and, of
the last three panels, of `etc/dcp-metrics-included.csv` (at 99a774b). Scraped with `honorLabels`, a
series has the namespace and the pod that uses the GPU. Without GPUs the row stays empty.
"""

from __future__ import annotations

from typing import Final

from dashboards.model import Panel, Query, Row
from dashboards.promql import largest, series

OF_PODS: Final = 'namespace="$namespace", pod=~"$pod"'
GPU: Final = "{{pod}} GPU {{gpu}}"


def _of_each(metric: str, scale: str = "") -> str:
    return largest(series(metric, OF_PODS) + scale, "pod", "gpu")


GPUS: Final = Row(
    "GPUs",
    (
        Panel(
            "GPU use",
            "percent",
            (Query(_of_each("DCGM_FI_DEV_GPU_UTIL"), GPU),),
            "Share of the time in which a kernel ran: 100 does not mean that it was busy.",
        ),
        Panel(
            "Memory bandwidth",
            "percent",
            (Query(_of_each("DCGM_FI_DEV_MEM_COPY_UTIL"), GPU),),
            "Share of the time in which memory was read or written; decoding is bound by it.",
        ),
        Panel(
            "GPU memory",
            "bytes",
            (Query(_of_each("DCGM_FI_DEV_FB_USED", " * 1048576"), GPU),),
            "Weights, KV pool and activations. The pool is taken at the start, so it stays flat.",
        ),
        Panel("Power", "watt", (Query(_of_each("DCGM_FI_DEV_POWER_USAGE"), GPU),), "Drawn now."),
        Panel(
            "Temperature",
            "celsius",
            (Query(_of_each("DCGM_FI_DEV_GPU_TEMP"), GPU),),
            "GPUs that are too hot lower their clock.",
        ),
        Panel(
            "Errors",
            "short",
            (Query(_of_each("DCGM_FI_DEV_XID_ERRORS"), GPU),),
            "The last XID error; 0 without one. NVIDIA's documentation says what each means.",
        ),
        Panel(
            "Tensor cores",
            "percentunit",
            (Query(_of_each("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), GPU),),
            "Share of the cycles in which they computed; high in prefill.",
        ),
        Panel(
            "Memory interface",
            "percentunit",
            (Query(_of_each("DCGM_FI_PROF_DRAM_ACTIVE"), GPU),),
            "Share of the cycles in which it sent or received; high in decode.",
        ),
        Panel(
            "PCIe",
            "Bps",
            (
                Query(_of_each("DCGM_FI_PROF_PCIE_TX_BYTES"), f"{GPU} sends"),
                Query(_of_each("DCGM_FI_PROF_PCIE_RX_BYTES"), f"{GPU} receives"),
            ),
            "Bytes in a second, KV pages of a hand-over among them.",
        ),
    ),
)
