"""Several processes, one engine: each computes its part of every layer."""
