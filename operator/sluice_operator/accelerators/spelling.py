"""Whether a product is spelt as nodes are known to spell it, where no node can be asked. Pure."""

from __future__ import annotations

from sluice_contract.config.accelerators import labels_near

from sluice_operator.accelerators.wanted import product_label
from sluice_operator.api.pools import AcceleratorSpec


def unusual_spelling(accelerator: AcceleratorSpec | None) -> str | None:
    """A warning about a product that no known node label spells so. None where one does, where the
    spec names the label itself, and of a product like no other."""
    if accelerator is None or accelerator.product is None or accelerator.product_label:
        return None
    near = labels_near(accelerator.product)
    if not near:
        return None
    label = product_label(accelerator)
    return (
        f"no node is known to say {accelerator.product}, and these pods go to nodes with the label "
        f"{label}={accelerator.product} alone; near it: {', '.join(near)}"
    )
