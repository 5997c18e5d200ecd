"""`sluice rollout`: status, history, undo and restart of an InferenceService's roll-outs."""
