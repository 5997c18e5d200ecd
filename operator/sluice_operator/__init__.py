"""sluice_operator."""
