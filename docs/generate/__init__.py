"""Writes the reference pages that are generated from types. Outside the packages, because it reads
both operator and runtime."""
