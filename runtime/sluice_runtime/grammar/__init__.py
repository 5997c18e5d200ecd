"""Structured output: from a request's constraint to a mask over the next token.

`json_schema` and `ebnf` convert what clients send for the grammar library, llguidance. `constraint`
checks it in the API process and compiles it in the engine, over the tokens that `vocabulary`
spells. `waiting` and `masks` belong to the engine: requests wait until their grammar is compiled,
and logits are masked before a token is drawn. The library bounds each of its calls itself.
"""
