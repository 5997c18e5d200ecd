"""What a service's user asked for, and what a release of the operator decided for it."""
