"""Reading KV pages out of the registered memory of another engine."""
