"""`sluice chat`: a conversation with a service's model, in the terminal."""
