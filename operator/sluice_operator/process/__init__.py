"""The life of the operator's process."""
