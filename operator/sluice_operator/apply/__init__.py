"""Carries out plans: server-side apply, status, events."""
