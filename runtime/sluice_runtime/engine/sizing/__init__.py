"""How large the parts of an engine are: settings, what fits a GPU or a host, the KV pool."""
