"""Tool calls in chat: what a request offers, how a model family writes a call, and how calls are
parsed."""
