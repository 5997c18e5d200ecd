"""What of JSON schemas can be kept, and what a schema says by leaving out. Runs anywhere."""
