"""What of a spec is refused, and in which words."""
