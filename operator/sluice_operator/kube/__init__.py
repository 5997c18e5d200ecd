"""HTTP to the API server, and the kinds of objects there."""
