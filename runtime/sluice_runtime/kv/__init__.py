"""The KV cache's memory, page-major."""
