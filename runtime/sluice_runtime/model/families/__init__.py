"""Families of models over the common decoder, a file each."""
