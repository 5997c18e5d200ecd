"""Pure builders of child objects, one module per concern; plain dicts out."""
