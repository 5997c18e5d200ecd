"""JSON schemas, checked and rewritten for the grammar library. Runs in any process."""
