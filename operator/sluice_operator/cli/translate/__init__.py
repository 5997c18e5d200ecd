"""Other engines' names for our settings: one table an engine, and what reads it."""
