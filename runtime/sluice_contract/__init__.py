"""sluice_contract."""
