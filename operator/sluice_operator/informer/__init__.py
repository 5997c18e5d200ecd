"""Every event of a watched kind becomes a key; workers reconcile keys."""
