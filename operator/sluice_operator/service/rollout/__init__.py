"""How many engines each revision of each pool should have, and which revisions go."""
