"""Which GPU the machine types of the big clouds have, for nodes that no other label describes.

From the providers' own lists: AWS "Accelerated computing instances" (EC2), Azure "GPU accelerated
sizes", Google Cloud "GPU machine types", all read in 2026. Names are those of the accelerator table
where it has the product. A type that is not here is not guessed.
"""

from __future__ import annotations

import re
from typing import Final

LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def _table(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), product) for pattern, product in rows)


TYPES: Final = _table(
    # AWS
    (r"^p3dn\.", "V100-32GB"),
    (r"^p3\.", "V100-16GB"),
    (r"^p4d\.", "A100-40GB"),
    (r"^p4de\.", "A100-80GB"),
    (r"^p5\.", "H100"),
    (r"^p5en?\.|^p5e\.", "H200"),
    (r"^p6-b200\.", "B200"),
    (r"^p6e-gb200\.", "GB200"),
    (r"^g4dn\.", "T4"),
    (r"^g5\.", "A10G"),
    (r"^gr?6\.", "L4"),
    (r"^g6e\.", "L40S"),
    # Azure
    (r"^Standard_NC\d+as_T4_v3$", "T4"),
    (r"^Standard_NC\d+s_v3$", "V100-16GB"),
    (r"^Standard_NC\d+ads_A100_v4$", "A100-80GB"),
    (r"^Standard_ND\d+asr(_A100)?_v4$", "A100-40GB"),
    (r"^Standard_ND\d+amsr_A100_v4$", "A100-80GB"),
    (r"^Standard_N[CD]\d+\w*_H100_v5$", "H100"),
    (r"^Standard_ND\d+\w*_H200_v5$", "H200"),
    (r"^Standard_ND\d+\w*_GB200_v6$", "GB200"),
    (r"^Standard_ND\d+\w*_MI300X_v5$", "MI300X"),
    # Google Cloud
    (r"^a2-highgpu-|^a2-megagpu-", "A100-40GB"),
    (r"^a2-ultragpu-", "A100-80GB"),
    (r"^a3-(high|mega|edge)gpu-", "H100"),
    (r"^a3-ultragpu-", "H200"),
    (r"^a4-highgpu-", "B200"),
    (r"^a4x-highgpu-", "GB200"),
    (r"^g2-standard-", "L4"),
    (r"^g4-standard-", "RTX-PRO-6000"),
)


def product_of_type(instance_type: str) -> str | None:
    """The GPU of a machine type; None where the table has none."""
    return next((product for pattern, product in TYPES if pattern.search(instance_type)), None)
