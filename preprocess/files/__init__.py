"""File formats without a library of their own; imports ``preprocess.base``."""
