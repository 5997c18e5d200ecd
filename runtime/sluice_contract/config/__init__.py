"""What one engine is: its configuration, its sizes and what may be set, as frozen values."""
