"""The CRDs as pydantic types, and their generated schemas."""
