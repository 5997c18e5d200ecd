"""From a step's logits to one token a row: adjust, restrict, draw, and remember what was drawn."""
