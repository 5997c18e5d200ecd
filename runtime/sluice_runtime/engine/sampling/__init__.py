"""Draws one token a row from a step's logits: adjust, restrict, draw, and record what was drawn."""
