"""The vocabulary that the modules of this package share."""


class InputError(ValueError):
    """A batch system, or what it or the user said, that cannot be worked with; the message says what would be right."""
