"""Traces replayed on fleets whose size a policy decides: ours, and those of others.

The fleet is light: queues, rows and a formula for step times, without a scheduler. Policies see
what routers would report.
"""
