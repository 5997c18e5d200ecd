"""Which accelerators a pool asks for, which nodes have them, and how certain that is."""
