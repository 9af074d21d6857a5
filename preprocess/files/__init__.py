"""File formats that need no further library; imports ``preprocess.base``."""
