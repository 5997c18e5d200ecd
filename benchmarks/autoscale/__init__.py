"""Replays of scaling: our `decide` compared with the rules of others, on public traces and on
ramps."""
