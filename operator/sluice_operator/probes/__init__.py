"""Probes of what no watch reports: engines, downloads, and which kinds the cluster has."""
