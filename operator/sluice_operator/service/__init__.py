"""InferenceService: plan and status."""
