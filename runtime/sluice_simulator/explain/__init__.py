"""What engines bear, arranged in the ways that there are: the simulations of `sluice explain`."""
