"""The contract between operator, router and engine.

Engine configuration, accelerator defaults, load report, metric names, labels and ports. Plain
values and pydantic only: this package imports nothing else of ours.
"""
