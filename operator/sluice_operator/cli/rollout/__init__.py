"""`sluice rollout`: the roll-outs of an InferenceService, their history, and canaries."""
