"""Policies that decide the number of engines: ours, and those of others."""
