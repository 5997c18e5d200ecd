"""`POST /v1/responses`, without a store: `request` is its body, `translation` makes a chat of it,
`events` writes the chat's answer as a response and as its events."""
