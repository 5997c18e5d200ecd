"""Separates a model's reasoning, which precedes its answer, from the answer."""
