"""Pure builders of child objects, one module per kind."""
