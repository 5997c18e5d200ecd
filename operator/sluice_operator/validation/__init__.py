"""Refused specs: which parts are refused, and in which words."""
