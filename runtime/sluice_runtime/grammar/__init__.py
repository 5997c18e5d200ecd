"""Structured output: from the text of a request's grammar to a mask over the next token.

`schema` checks JSON schemas, `compile` compiles grammars and `follow` makes masks; the latter two
run the grammar library in worker processes that can be killed (`processes`). Requests wait in a
queue in front of the scheduler (`waiting`), so the scheduler knows nothing of grammars; logits are
masked before a token is drawn.
"""
