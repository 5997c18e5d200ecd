"""Structured output: what a request's grammar allows next, from its text to a mask over tokens.

A grammar is compiled in a process of its own, which may be killed; requests wait for it in a queue
in front of the scheduler, which therefore knows nothing of grammars. The engine keeps a matcher a
request and masks its logits before a token is drawn.
"""
