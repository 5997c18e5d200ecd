"""Configuration of one engine: its settings, its sizes and what may be set, as frozen values."""
