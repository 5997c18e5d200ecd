"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: `request` is the body,
`translation` makes a chat of it, `events` writes the chat's answer as a message and its events."""
