"""What API process and engine process say to each other."""
