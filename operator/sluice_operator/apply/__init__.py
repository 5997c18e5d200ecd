"""What a plan becomes: server-side apply, status, events."""
