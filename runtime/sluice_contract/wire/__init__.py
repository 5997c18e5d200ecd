"""Messages between processes: HTTP, headers, load reports, spans, log lines."""
