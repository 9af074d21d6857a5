"""File formats without a library of their own; imports nothing of the project."""
