"""How an engine starts, is supervised and ends; what of the machine it may use."""
