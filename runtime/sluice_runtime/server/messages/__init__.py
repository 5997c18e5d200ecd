"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: `request` is the body,
`translation` translates it into a chat request, `events` writes the answer as a message or as its
events."""
