"""Sizes of the parts of an engine: settings, what fits a GPU or a host, the KV pool."""
