"""What processes say to each other: HTTP, headers, load reports, spans, log lines."""
