"""Scales the pools of services: query their load → decide → carry out → record events."""
