"""How a model gets to the engines: resolved, downloaded, and when engines may be made of it."""
