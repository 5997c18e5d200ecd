"""sluice_router."""
