"""The messages between the API process and the engine process, and their sockets."""
