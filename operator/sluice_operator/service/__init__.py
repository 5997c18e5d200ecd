"""One InferenceService: observe → resolve → plan its roll-out and its children → report."""
