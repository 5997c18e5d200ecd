"""What may follow in an answer, token by token, by a process that may be killed."""
