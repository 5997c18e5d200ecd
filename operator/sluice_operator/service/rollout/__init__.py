"""How many engines each revision of each pool should have, and what goes for it."""
