"""What operator, router and engine agree on.

Engine configuration, accelerator defaults, load report, metric names, labels and ports. Plain
values and pydantic only: this package imports nothing else of ours.
"""
