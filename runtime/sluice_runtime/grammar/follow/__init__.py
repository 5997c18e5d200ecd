"""Masks over the next token of answers, made by a process that can be killed."""
