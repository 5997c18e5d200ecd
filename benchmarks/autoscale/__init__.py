"""Replays of scaling: our `decide` beside the rules of others, on public traces and on ramps."""
