"""The load that engines bear, in every arrangement: the simulations of `sluice explain`."""
