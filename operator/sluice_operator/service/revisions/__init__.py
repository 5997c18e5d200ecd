"""Revisions of a service: what its user asked for, and what a release of the operator decided."""
