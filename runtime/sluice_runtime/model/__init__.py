"""Architectures: what config.json means, where weights come from, the decoder itself."""
