"""Tool calls in chat: what a request offers, how a model family writes one, and how it is read."""
