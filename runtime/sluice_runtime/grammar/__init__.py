"""Structured output: what a request's grammar allows next, from its text to a mask over tokens.

`schema` reads JSON schemas, `compile` makes grammars of texts, `follow` goes with answers through
them; the two have the library, and each runs it in processes of its own, which may be killed
(`processes`). Requests wait in a queue in front of the scheduler (`waiting`), which therefore knows
nothing of grammars; logits are masked before a token is drawn.
"""
