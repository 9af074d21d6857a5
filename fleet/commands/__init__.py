"""One module for each ``fleet`` command; ``fleet.__main__`` holds the table."""
