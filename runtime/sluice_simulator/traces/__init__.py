"""Request traces: arrivals, lengths, and shared prefixes."""
