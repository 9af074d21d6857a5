"""File formats that need no library of their own; imports ``preprocess.base``."""
