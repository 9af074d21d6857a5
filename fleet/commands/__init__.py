"""One module for each ``fleet`` command; may import everything but ``fleet.__main__``, which holds their table."""
