"""From the text of a grammar to the compiled one, in processes that may be killed."""
