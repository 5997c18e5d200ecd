"""sluice_runtime."""
