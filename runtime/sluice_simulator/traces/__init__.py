"""Request traces: what arrived when, how long it was, and which prefixes it shared."""
