"""Structured output: from a request's constraint to a mask over the next token.

`json_schema` and `ebnf` convert clients' constraints for the grammar library, llguidance.
`constraint` checks them in the API process and compiles them in the engine, over the tokens from
`vocabulary`. `waiting` and `masks` belong to the engine: requests wait until their grammar is
compiled, and logits are masked before a token is drawn. The library limits each of its calls
itself.
"""
