"""`POST /v1/responses`, without a store: `request` is the body, `translation` translates it into a
chat request, `events` writes the answer as a response or as its events."""
