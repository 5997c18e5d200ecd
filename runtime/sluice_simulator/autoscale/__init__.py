"""Traces replayed on fleets whose size a policy decides: ours, and those of others.

The fleet is light: queues, rows and a formula for the time of a step, no scheduler. What a policy
sees is what routers would report.
"""
