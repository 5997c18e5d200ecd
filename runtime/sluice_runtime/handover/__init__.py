"""The hand-over of the KV cache from a prefill engine to a decode engine."""
