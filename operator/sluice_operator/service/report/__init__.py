"""What the status of an InferenceService says, and from what it is told."""
