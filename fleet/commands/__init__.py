"""The ``fleet`` commands, one module each; they may import everything but ``fleet.__main__``."""
