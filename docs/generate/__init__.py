"""Writes the reference pages that say what the types say. Outside the packages, since it reads both
operator and runtime."""
