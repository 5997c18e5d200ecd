"""Who decides how many engines there are: our rule, and the rules of others."""
