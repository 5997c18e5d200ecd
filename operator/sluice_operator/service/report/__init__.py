"""The status of an InferenceService, and its sources."""
